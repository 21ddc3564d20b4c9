//! A throw-away control plane: tests, demo, rehearsal.
