"""Steps as training jobs of Amazon SageMaker AI."""
