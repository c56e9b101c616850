"""AWS Batch: a step is a job, a fan-out an array, and a gang a multi-node parallel job."""
