//! Codes of findings that a consent can override.

/// A CRD would drop fields that objects use. An override accepts the objects as
/// the new schema leaves them.
pub const FIELD_IN_USE: &str = "field-in-use";

/// No workload of the release could write a role again. The new version may
/// grant less than the installed one, or the role writer may have more
/// permissions than git grants it.
pub const CANNOT_GRANT: &str = "operator-cannot-grant";

/// A Service is deleted while a remaining object references it. An override
/// states that the reference is not needed.
pub const BACKEND_DELETED: &str = "backend-removed";

/// Codes that a consent `override` may name, in addition to checks of the
/// bundle.
pub const OVERRIDABLE: [&str; 3] = [FIELD_IN_USE, CANNOT_GRANT, BACKEND_DELETED];
