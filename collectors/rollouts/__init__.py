"""Records of single rollouts as frameworks write them, one module per format. Texts and token ids are never stored."""
