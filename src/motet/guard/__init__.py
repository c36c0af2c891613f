"""Guards protect what is made of replies, whatever the method and the engine."""
