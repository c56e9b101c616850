"""`accelerate launch` on each node, with options that make it follow its arguments.

By default it also reads a file in the user's home that may contradict them, starts one process for `--cpu
--num_processes 2`, and starts processes that each take themselves for the only one without `--multi_gpu`
(`_validate_launch_command` and `launch_command`,
https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py). The table of arguments is
from its own parser in the same file.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

from stoker.core.findings import Finding
from stoker.core.settings import Launch
from stoker.launchers import torchrun
from stoker.launchers.arguments import PORT, Argument, installed_arguments
from stoker.launchers.base import (
    SCRIPT,
    Argv,
    FlowWords,
    Launcher,
    Layout,
    Node,
    NodeCommand,
    complete_table,
    constructor,
    module_command,
    refusal,
)

PARADIGMS: Final = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
"""Ways in which several ranks work together; without one, only one rank is started."""
CONFIG: Final = Path(__file__).with_name("accelerate_config.json")
"""A file with the defaults only. Without it, the one in the user's home would be read."""
EXCLUSIVE: Final = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
"""Flags of which it takes one at a time."""

# bf16 in tensor cores from Ampere on, fp8 from Ada Lovelace on:
# https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html and
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions
PRECISIONS: Final[Mapping[str, tuple[int, int]]] = {"bf16": (8, 0), "fp8": (8, 9)}

PLACE: Final = "each node learns its place, the head's address and a free port when it starts"
NODES: Final = "Stoker starts the launcher on every node itself, with the devices that the step holds"
LEASED: Final = "the step runs on the devices that it holds; resources.gpu_count says how many"
SECRET: Final = "a command line can be read by everybody on the machine; SageMaker is no launcher of ranks"

FLAG: Final = Argument("flag")
COUNT: Final = Argument("int", least=1)
NATURAL: Final = Argument("int", least=0)
SHARE: Final = Argument("float", least=0, most=1)
NUMBER: Final = Argument("float", least=0)
TEXT: Final = Argument("text")
TRUTH: Final = Argument("truth")
YESNO: Final = Argument("yesno")
NAMES: Final = Argument("names")

ARGUMENTS: Final[Mapping[str, Argument]] = {
    # positional arguments
    "training_script": Argument("text", owned=SCRIPT),
    "training_script_args": Argument("text", owned=SCRIPT),
    # options
    "config_file": TEXT,
    "quiet": FLAG,
    "module": Argument("flag", owned=SCRIPT),
    "no_python": Argument("flag", owned=SCRIPT),
    "debug": FLAG,
    # Hardware Selection Arguments
    "cpu": FLAG,
    "multi_gpu": FLAG,
    "tpu": FLAG,
    # Resource Selection Arguments
    "mixed_precision": Argument("text", ("no", "fp16", "bf16", "fp8")),
    "num_processes": Argument("int", means="num_processes"),
    "num_machines": Argument("int", means="nodes"),
    "num_cpu_threads_per_process": COUNT,
    "enable_cpu_affinity": FLAG,
    "dynamo_backend": Argument(
        "text",
        (
            "no",
            "eager",
            "aot_eager",
            "inductor",
            "aot_ts_nvfuser",
            "nvprims_nvfuser",
            "cudagraphs",
            "ofi",
            "fx2trt",
            "onnxrt",
            "tensorrt",
            "aot_torchxla_trace_once",
            "torhchxla_trace_once",
            "tvm",
        ),
    ),
    "dynamo_mode": Argument("text", ("default", "reduce-overhead", "max-autotune")),
    "dynamo_use_fullgraph": FLAG,
    "dynamo_use_dynamic": FLAG,
    "dynamo_use_regional_compilation": FLAG,
    # Training Paradigm Arguments
    "use_deepspeed": FLAG,
    "use_fsdp": FLAG,
    "use_parallelism_config": FLAG,
    "use_megatron_lm": FLAG,
    # Distributed GPUs
    "gpu_ids": Argument("names", owned=LEASED),
    "same_network": FLAG,
    "machine_rank": Argument("int", owned=PLACE),
    "main_process_ip": Argument("text", owned=PLACE),
    "main_process_port": PORT,
    "tee": TEXT,
    "log_dir": TEXT,
    "role": TEXT,
    "rdzv_backend": TEXT,
    "rdzv_conf": Argument("pairs"),
    "max_restarts": NATURAL,
    "monitor_interval": NUMBER,
    # TPU
    "tpu_use_cluster": Argument("switch", flag="--tpu_cluster", off="--no_tpu_cluster"),
    "tpu_use_sudo": FLAG,
    "vm": Argument("texts", owned=NODES),
    "env": Argument("texts"),
    "main_training_function": Argument("text", owned=SCRIPT),
    "downcast_bf16": FLAG,
    # DeepSpeed Arguments
    "deepspeed_config_file": TEXT,
    "zero_stage": Argument("int", least=0, most=3),
    "offload_optimizer_device": TEXT,
    "offload_param_device": TEXT,
    "offload_optimizer_nvme_path": TEXT,
    "offload_param_nvme_path": TEXT,
    "gradient_accumulation_steps": COUNT,
    "gradient_clipping": NUMBER,
    "zero3_init_flag": YESNO,
    "zero3_save_16bit_model": YESNO,
    "deepspeed_hostfile": Argument("text", owned=NODES),
    "deepspeed_exclusion_filter": Argument("text", owned=NODES),
    "deepspeed_inclusion_filter": Argument("text", owned=NODES),
    "deepspeed_multinode_launcher": Argument("text", owned=NODES),
    "deepspeed_moe_layer_cls_names": NAMES,
    # FSDP Arguments
    "fsdp_version": Argument("text", ("1", "2")),
    "fsdp_offload_params": YESNO,
    "fsdp_min_num_params": NATURAL,
    "fsdp_sharding_strategy": TEXT,
    "fsdp_reshard_after_forward": Argument(
        "yesno", ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    ),
    "fsdp_auto_wrap_policy": TEXT,
    "fsdp_transformer_layer_cls_to_wrap": NAMES,
    "fsdp_backward_prefetch": TEXT,
    "fsdp_state_dict_type": TEXT,
    "fsdp_forward_prefetch": YESNO,
    "fsdp_use_orig_params": YESNO,
    "fsdp_cpu_ram_efficient_loading": YESNO,
    "fsdp_sync_module_states": YESNO,
    "fsdp_activation_checkpointing": YESNO,
    "fsdp_activation_checkpointing_offload": YESNO,
    # Megatron-LM Arguments
    "megatron_lm_tp_degree": COUNT,
    "megatron_lm_use_custom_fsdp": TRUTH,
    "megatron_lm_no_load_optim": TRUTH,
    "megatron_lm_eod_mask_loss": TRUTH,
    "megatron_lm_overlap_cpu_optimizer_d2h_h2d": TRUTH,
    "megatron_lm_no_save_optim": TRUTH,
    "megatron_lm_optimizer_cpu_offload": TRUTH,
    "megatron_lm_use_precision_aware_optimizer": TRUTH,
    "megatron_lm_decoder_last_pipeline_num_layers": COUNT,
    "megatron_lm_pp_degree": COUNT,
    "megatron_lm_num_micro_batches": COUNT,
    "megatron_lm_sequence_parallelism": YESNO,
    "megatron_lm_recompute_activations": YESNO,
    "megatron_lm_use_distributed_optimizer": YESNO,
    "megatron_lm_gradient_clipping": NUMBER,
    "megatron_lm_recompute_granularity": TEXT,
    "megatron_lm_recompute_method": TEXT,
    "megatron_lm_recompute_num_layers": COUNT,
    "megatron_lm_attention_backend": TEXT,
    "megatron_lm_expert_model_parallel_size": COUNT,
    "megatron_lm_context_parallel_size": COUNT,
    "megatron_lm_attention_dropout": SHARE,
    "megatron_lm_hidden_dropout": SHARE,
    "megatron_lm_attention_softmax_in_fp32": YESNO,
    "megatron_lm_expert_tensor_parallel_size": COUNT,
    "megatron_lm_calculate_per_token_loss": YESNO,
    "megatron_lm_use_rotary_position_embeddings": YESNO,
    # FP8 Arguments
    "fp8_backend": Argument("text", ("ao", "te", "msamp")),
    "fp8_use_autocast_during_eval": FLAG,
    "fp8_margin": NATURAL,
    "fp8_interval": COUNT,
    "fp8_format": Argument("text", ("HYBRID", "E4M3", "E5M2")),
    "fp8_amax_history_len": COUNT,
    "fp8_amax_compute_algo": Argument("text", ("max", "most_recent")),
    "fp8_override_linear_precision": Argument("yesnos"),
    "fp8_opt_level": Argument("text", ("O1", "O2")),
    "fp8_enable_fsdp_float8_all_gather": YESNO,
    "fp8_pad_inner_dim": YESNO,
    # AWS Arguments
    "aws_access_key_id": Argument("text", owned=SECRET),
    "aws_secret_access_key": Argument("text", owned=SECRET),
    # MPI Arguments
    "mpirun_hostfile": Argument("text", owned=NODES),
    # ParallelismConfig Arguments
    "parallelism_config_dp_replicate_size": COUNT,
    "parallelism_config_dp_shard_size": Argument("int", least=-1),
    "parallelism_config_tp_size": COUNT,
    "parallelism_config_cp_size": COUNT,
    "parallelism_config_cp_backend": Argument("text", ("torch",)),
    "parallelism_config_cp_comm_strategy": TEXT,
    "parallelism_config_sp_size": COUNT,
    "parallelism_config_sp_backend": Argument("text", ("deepspeed",)),
    "parallelism_config_sp_seq_length": TEXT,
    "parallelism_config_sp_seq_length_is_variable": TRUTH,
    "parallelism_config_sp_attn_implementation": TEXT,
}
"""Every argument of version 1.15 by Python name, in the groups of the command's help. `newer` reads those of newer
versions."""


@constructor
def Accelerate(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Ranks by `accelerate launch`, which takes every argument by its Python name.

    `num_processes` is the number of ranks on all machines, as Accelerate has it. Several processes with `cpu=True` are
    several ranks that talk through gloo; the command itself would start one.
    """
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """`accelerate launch` for one node; its ranks learn their place from torch's variables."""
    values = {name: value for name, value in arguments.items() if value is not None}
    cpu = bool(values.pop("cpu", False)) or node.cpu
    values["num_processes"] = node.world_size
    values["num_machines"] = node.nodes
    values["main_process_port"] = values.get("main_process_port", node.port)
    values.setdefault("gpu_ids", ["all"])
    if node.nodes > 1:
        values |= {"machine_rank": node.rank, "main_process_ip": node.head}
        # Its default, "pdsh", would start the other nodes by ssh from each node.
        values.setdefault("deepspeed_multinode_launcher", "standard")
    environment = {"PET_RDZV_ID": node.rendezvous, **(torchrun.RESTARTS if torchrun.elastic(values) else {})}
    if node.nodes > 1:
        # c10d would publish this node's full name, which other nodes may not resolve.
        environment["PET_LOCAL_ADDR"] = node.address
    values |= _paradigm(values, node, cpu)
    if cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
    if "config_file" not in values:
        values["config_file"] = str(CONFIG)
    return NodeCommand(
        argv=module_command("accelerate.commands.launch", argv, node, complete_table(ARGUMENTS, values, newer), values),
        environment=environment,
    )


def _paradigm(values: Mapping[str, Any], node: Node, cpu: bool) -> dict[str, Any]:
    """The flags that start as many ranks as requested."""
    has_paradigm = any(values.get(name) for name in PARADIGMS)
    if node.world_size == 1:
        # `--multi_gpu` is refused for a single rank.
        return {"cpu": cpu and not has_paradigm}
    if cpu:
        # With `--cpu` one process would be started; ACCELERATE_USE_CPU makes these ranks use gloo.
        return {"cpu": False, "multi_gpu": True}
    # A flag would override the user's own config file.
    return {} if has_paradigm or "config_file" in values else {"multi_gpu": True}


def join_on_cpus(state: Any) -> None:
    """Make `PartialState` heed ACCELERATE_USE_CPU, as `Accelerator` does.

    Without it a rank on a CPU that asks `PartialState()` is told that it is the only one, in a world of one
    (`PartialState._prepare_backend`, https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/state.py).
    """
    original = state.PartialState.__init__

    @functools.wraps(original)
    def initialise(self: Any, cpu: bool = False, **keywords: Any) -> None:
        original(self, cpu or state.parse_flag_from_env("ACCELERATE_USE_CPU"), **keywords)

    state.PartialState.__init__ = initialise


def newer() -> Mapping[str, Argument]:
    """The arguments of the accelerate that is installed; importing it takes seconds."""
    return installed_arguments("accelerate.commands.launch:launch_command_parser", "accelerate")


def hardware(layout: Layout) -> Iterator[Finding]:
    """Refuse ranks that would each take themselves for the only one, and pods whose hosts are started by ssh."""
    tpu = layout.arguments.get("tpu")
    if not layout.cpu and not layout.devices and layout.world_size > 1 and not tpu:
        yield refusal(
            f"{layout.world_size} processes without an accelerator, and cpu=True is not said",
            why="Accelerate would start processes that each take themselves for the only one",
            fix="write cpu=True for ranks on CPUs, or ask for resources.gpu_count",
            code="STK132",
        )
    if layout.nodes > 1 and tpu:
        yield refusal(
            f"tpu=True on {layout.nodes} nodes",
            why="Accelerate starts a pod's other hosts itself, by ssh, where Stoker would not see them",
            fix="launch with Jax(…), or ask for resources.nodes=1",
            code="STK138",
        )


def exclusive(layout: Layout) -> Iterator[Finding]:
    """Refuse arguments that exclude each other (`_validate_launch_command`)."""
    arguments = layout.arguments
    flags = [name for name in EXCLUSIVE if arguments.get(name)]
    if len(flags) > 1:
        yield refusal(
            f"{' and '.join(f'{name}=True' for name in flags)} exclude each other",
            why="accelerate launch takes one of them at a time",
            fix=f"keep {flags[-1]}=True" if "multi_gpu" in flags[:-1] else "keep one of them",
        )
    if arguments.get("cpu") and arguments.get("use_megatron_lm"):
        yield refusal("cpu=True and use_megatron_lm=True exclude each other", fix="keep one of them")
    if arguments.get("multi_gpu") and layout.world_size < 2 and not arguments.get("cpu"):
        yield refusal(
            "multi_gpu=True with one process",
            why="accelerate launch wants at least 2 processes for it",
            fix="remove multi_gpu, which follows from the number of processes, or ask for resources.gpu_count=2",
        )
    version = str(arguments.get("fsdp_version", "1"))
    if arguments.get("use_parallelism_config") and not (arguments.get("use_fsdp") and version == "2"):
        yield refusal(
            "use_parallelism_config=True without use_fsdp=True and fsdp_version=2",
            why="accelerate launch refuses it",
            fix='write use_fsdp=True and fsdp_version="2"',
        )


def precision(layout: Layout) -> Iterator[Finding]:
    """Refuse a precision that the accelerators do not support."""
    name = str(layout.arguments.get("mixed_precision", ""))
    needed = PRECISIONS.get(name)
    if needed is None or layout.cpu or layout.capability is None:
        return
    for model in layout.models:
        capability = layout.capability(model)
        if capability is not None and capability < needed:
            yield refusal(
                f'mixed_precision="{name}" on {model}',
                why=f"it computes {name} from compute capability {_version_text(needed)} on, "
                f"and has {_version_text(capability)}",
                fix='write mixed_precision="fp16"'
                + (', or "bf16"' if capability >= PRECISIONS["bf16"] else "")
                + ", or ask for another accelerator",
                code="STK136",
            )


def _version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


LAUNCHER: Final = Launcher(
    name="accelerate",
    command=command,
    arguments=ARGUMENTS,
    newer=newer,
    package="accelerate",
    brought_by=frozenset({"accelerate", "peft", "trl"}),
    requirement="stoker[accelerate]",
    checks=(hardware, exclusive, precision),
    port="main_process_port",
    finds_port=True,
    on_cpus="cpu",
    devices="multi_gpu",
    adaptations={"accelerate.state": join_on_cpus},
    restarts="max_restarts",
    # It has no default of its own for ranks that start again.
    numbers_nodes=lambda arguments: torchrun.numbers_nodes({"rdzv_backend": "static", **arguments}),
    flow=FlowWords(current="accelerate", title="accelerate launch"),
)
