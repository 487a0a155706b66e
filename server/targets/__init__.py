"""Which targets exist: resolving a source, lists of targets, detection, scan of this host."""
