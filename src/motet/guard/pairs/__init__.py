"""Guards around `average`: what a reply goes through when it leaves a client and when it arrives."""
