"""Records of single rollouts as frameworks write them. One file is one format; texts and token ids are never kept."""
