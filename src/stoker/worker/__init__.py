"""What runs inside a job. It travels into other people's images, so it stays small and pure Python."""
