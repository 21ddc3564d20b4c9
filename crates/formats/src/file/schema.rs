//! JSON Schemas of pleach's own files, for editors. Generated from the structs that read them and
//! their doc comments.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{API_VERSION, Bundle, Controller, Environment, Repository};

/// Returns the schema of each kind of file, by kind. Stored in docs/schemas/.
///
/// ```
/// let kinds: Vec<&str> = pleach_formats::file::schemas().map(|(kind, _)| kind).to_vec();
/// assert_eq!(kinds, ["Repository", "Environment", "Bundle", "BundleVersion", "Controller"]);
/// ```
pub fn schemas() -> [(&'static str, Value); 5] {
    let bundle = of::<Bundle>("BundleVersion");
    [
        ("Repository", of::<Repository>("Repository")),
        ("Environment", of::<Environment>("Environment")),
        ("Bundle", of::<Bundle>("Bundle")),
        ("BundleVersion", bundle),
        ("Controller", of::<Controller>("Controller")),
    ]
}

fn of<T: schemars::JsonSchema>(kind: &str) -> Value {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["title"] = json!(format!("pleach {kind}"));
    schema["properties"]["apiVersion"] = json!({
        "description": "The format.",
        "const": API_VERSION,
    });
    schema["properties"]["kind"] = json!({"description": "Kind of the file.", "const": kind});
    schema
}
