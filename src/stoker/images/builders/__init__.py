"""Who builds images: an engine on this machine, or a service that is told by a document."""
