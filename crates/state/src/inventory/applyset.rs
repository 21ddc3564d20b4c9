//! Ids of ApplySets (KEP-3659).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// Computes the id of the ApplySet whose parent is this object. An empty namespace stands for
/// cluster-scoped parents.
///
/// ```
/// use pleach_state::inventory::apply_set_id;
/// assert_eq!(
///     apply_set_id("r1", "", "Release", "pleach.dev"),
///     "applyset-BRyorMtZTq7RoPgTx8MDc5WXCaLXnnysx_c0hLHSyZA-v1"
/// );
/// ```
pub fn apply_set_id(name: &str, namespace: &str, kind: &str, group: &str) -> String {
    let hash = Sha256::digest(format!("{name}.{namespace}.{kind}.{group}"));
    format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(hash))
}
