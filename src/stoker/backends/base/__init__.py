"""What backends share: the seam to a platform, the watching thread, device leases, SSH."""
