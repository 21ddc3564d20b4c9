//! Files: every error names its path.
