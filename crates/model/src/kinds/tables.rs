//! Kind tables that are embedded in the program.

use std::sync::OnceLock;

use super::decode;
use super::schema::SchemaSet;

/// Files of one minor.
#[derive(Debug)]
pub(super) struct BuiltIn {
    pub(super) minor: &'static str,
    pub(super) kinds: &'static [u8],
    schemas: &'static [u8],
    decoded: OnceLock<SchemaSet>,
}

impl BuiltIn {
    /// Returns the schemas. They are decoded on the first call.
    pub(super) fn schemas(&self) -> &SchemaSet {
        self.decoded.get_or_init(|| {
            #[expect(
                clippy::expect_used,
                reason = "a test reads every table that is checked in"
            )]
            decode(self.schemas).expect("checked-in schemas are readable")
        })
    }
}

macro_rules! built_in {
    ($minor:literal) => {
        BuiltIn {
            minor: $minor,
            kinds: include_bytes!(concat!("tables/", $minor, ".kinds.json.gz")),
            schemas: include_bytes!(concat!("tables/", $minor, ".schemas.json.gz")),
            decoded: OnceLock::new(),
        }
    };
}

/// The checked-in tables, oldest minor first.
pub(super) static TABLES: [BuiltIn; 5] = [
    built_in!("1.32"),
    built_in!("1.33"),
    built_in!("1.34"),
    built_in!("1.35"),
    built_in!("1.36"),
];
