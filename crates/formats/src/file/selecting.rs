//! Structs that select objects and have further fields.

/// Defines a struct with the fields of a selector, without `service`, and further ones.
macro_rules! selecting {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name {
            /// Kind.
            pub kind: String,
            /// API group.
            pub group: Option<String>,
            /// Name.
            pub name: Option<String>,
            /// Namespace.
            pub namespace: Option<String>,
            /// Labels.
            pub labels: Option<std::collections::BTreeMap<String, String>>,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Returns the selector of the objects.
            pub fn target(&self) -> pleach_model::object::Selector {
                pleach_model::object::Selector {
                    kind: self.kind.clone(),
                    group: self.group.clone(),
                    name: self.name.clone(),
                    namespace: self.namespace.clone(),
                    labels: self.labels.clone().unwrap_or_default(),
                    service: None,
                }
            }
        }
    };
}
