"""The context index: what of a prompt the engine should have cached, and how contexts come together."""
