//! A CRD changes the type of a list.

use super::{fleet, gear, gears, group, names, upgrade};
use crate::fleet::{Fleet, owners};
use crate::samples::gears_of;

/// The server loses the owner of the atomic list and would retain items that git removes at the
/// same time.
#[test]
fn items_go_from_a_list_that_has_keys_from_now_on() {
    let g = group("keyed");
    let release = |kind: &str, names: &[&str]| {
        let schema = format!(
            "{{type: object, properties: {{spec: {{type: object, properties: {{groups: {{type: array{kind}, items: \
             {{type: object, required: [name], properties: {{name: {{type: string}}, x: {{type: string}}}}}}}}}}}}}}}}"
        );
        let items: Vec<String> = names
            .iter()
            .map(|name| format!("{{name: {name}, x: z}}"))
            .collect();
        let spec = format!("{{groups: [{}]}}", items.join(", "));
        format!(
            "{}---\n{}",
            gears_of(&g, &["v1"], &schema),
            gear(&g, "v1", "ours", &spec)
        )
    };
    let keyed = ", x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name]";
    let fleet = fleet(
        "keyed",
        &release("", &["a", "b", "c", "d"]),
        &release(keyed, &["a", "c"]),
    );
    upgrade(&fleet);
    fleet.applied();
    let ours = &gears(&fleet)[0];
    assert_eq!(names(&ours["spec"]["groups"]), ["a", "c"]);
    assert_eq!(owners(ours), ["pleach/keyed.web Apply"]);
    fleet.writes_nothing(Fleet::applied);
}
