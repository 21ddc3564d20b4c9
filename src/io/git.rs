//! Revisions and trees of git repositories.
