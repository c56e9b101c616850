#!/bin/bash
#SBATCH --job-name=stoker-driver-1
#SBATCH '--chdir=/w d'
#SBATCH --output=/o%%
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --partition=gpu
#SBATCH --account=vision
#SBATCH --qos=high
#SBATCH --cpus-per-task=1
#SBATCH --mem=1024M
#SBATCH --time=0-00:01:30
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

job=$SLURM_JOB_ID restarts=${SLURM_RESTART_COUNT:-0} asked= tries=0
export STOKER_RESTARTED_BY="Slurm job $SLURM_JOB_ID"
for name in ${!SLURM_@} ${!SLURMD_@}; do
  case $name in SLURM_CONF|SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done
trap 'asked=USR1' USR1
trap 'asked=TERM' TERM
while :; do
  began=$SECONDS
  env 'A=b c' python &
  driver=$!
  wait $driver
  code=$?
  if [ "$asked" = TERM ]; then
    # Slurm sends it before it ends the job for good, but also before it starts the job again, and people may.
    case $(scontrol --oneliner show job "$job") in
      *" JobState=RUNNING "*) ;;
      *" Restarts=$restarts "*) kill -INT $driver; wait $driver; exit $? ;;
    esac
  fi
  if [ -n "$asked" ]; then
    kill -USR1 $driver
    for half in {1..40}; do kill -0 $driver || break; sleep 0.5; done
    kill -KILL $driver
    scontrol requeue "$job" && exit 0
    [ "$asked" = USR1 ] || exit 0
    echo "Slurm job $job cannot be put back into the queue: it drives the run until its time limit"
    asked=
  fi 2>/dev/null
  case $code in 75 | 4 | 12[89] | 13[1-9] | 1[4-9]? | 2??) ;; *) exit $code ;; esac
  [ $((SECONDS - began)) -lt 60 ] || tries=0
  [ $((tries += 1)) -le 10 ] || exit $code
  sleep $tries
done
