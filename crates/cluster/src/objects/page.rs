//! Parser for one page of a list, object by object. The trees of all objects would need ten times
//! the memory of the text.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// Fields of a page besides its objects. `kind` is mandatory, so that another document is not
/// mistaken for an empty list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) kind: String,
    pub(super) metadata: PageMetadata,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMetadata {
    #[serde(rename = "continue")]
    pub(super) continue_token: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) remaining_item_count: Option<u64>,
}

/// Deserializer of a page. Parses each object as a `T` and retains the result of the conversion.
pub(super) struct Reading<'a, T, U, F> {
    read: &'a F,
    collected: &'a mut Vec<U>,
    object: PhantomData<T>,
}

impl<'a, T, U, F: Fn(T) -> U> Reading<'a, T, U, F> {
    pub(super) fn new(read: &'a F, collected: &'a mut Vec<U>) -> Self {
        Self {
            read,
            collected,
            object: PhantomData,
        }
    }
}

impl<'de, T: Deserialize<'de>, U, F: Fn(T) -> U> DeserializeSeed<'de> for Reading<'_, T, U, F> {
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Page, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>, U, F: Fn(T) -> U> Visitor<'de> for Reading<'_, T, U, F> {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Page, A::Error> {
        let (mut kind, mut metadata) = (None, None);
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                "kind" => kind = Some(fields.next_value()?),
                "metadata" => metadata = Some(fields.next_value()?),
                "items" => {
                    fields.next_value_seed(Items(Reading::new(self.read, self.collected)))?;
                }
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Page {
            kind: kind.ok_or_else(|| A::Error::missing_field("kind"))?,
            metadata: metadata.ok_or_else(|| A::Error::missing_field("metadata"))?,
        })
    }
}

/// Deserializer of the field `items`, which can be null.
struct Items<'a, T, U, F>(Reading<'a, T, U, F>);

impl<'de, T: Deserialize<'de>, U, F: Fn(T) -> U> DeserializeSeed<'de> for Items<'_, T, U, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T: Deserialize<'de>, U, F: Fn(T) -> U> Visitor<'de> for Items<'_, T, U, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the objects of a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self(Reading {
            read, collected, ..
        }) = self;
        while let Some(item) = items.next_element()? {
            collected.push(read(item));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case(r#"{"kind":"XList","metadata":{},"items":[{"a":1},{"a":2}],"more":[1]}"#, Some(vec![1, 2]))]
    #[case(r#"{"items":[{"a":1}],"metadata":{"continue":"x"},"kind":"XList"}"#, Some(vec![1]))]
    #[case(r#"{"kind":"XList","metadata":{},"items":null}"#, Some(vec![]))]
    #[case(r#"{"kind":"XList","metadata":{}}"#, Some(vec![]))]
    #[case(r#"{"metadata":{},"items":[]}"#, None)]
    #[case(r#"{"kind":"XList","items":[]}"#, None)]
    #[case(r#"{"kind":"XList","metadata":{},"items":{}}"#, None)]
    #[case("[]", None)]
    fn objects_are_collected_one_by_one(#[case] text: &str, #[case] expected: Option<Vec<i64>>) {
        let mut collected = Vec::new();
        let read = |item: Value| item["a"].as_i64().unwrap();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let page = Reading::new(&read, &mut collected).deserialize(&mut deserializer);
        assert_eq!(page.is_ok().then_some(collected), expected, "{page:?}");
    }
}
