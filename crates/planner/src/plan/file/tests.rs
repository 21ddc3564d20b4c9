use rstest::rstest;

use super::*;

fn id(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("web"), name)
}

fn object(name: &str, action: Action) -> ReviewedObject {
    ReviewedObject {
        object: id(name),
        action,
        require: match action {
            Action::Create => vec![Precondition::Absent],
            _ => vec![
                Precondition::Uid("u".to_owned()),
                Precondition::Fingerprint(Digest::of(b"entry")),
            ],
        },
        digest: (action != Action::Delete)
            .then(|| DesiredDigest::Known(Digest::of(name.as_bytes()))),
    }
}

fn reviewed() -> PlanFile {
    PlanFile {
        format: PLAN_FILE_FORMAT,
        written_by: "0.1.0".to_owned(),
        repository: "fleet".to_owned(),
        cluster: ClusterId("c".to_owned()),
        verify: false,
        releases: vec![ReviewedRelease {
            release: ReleaseName {
                environment: "dev".to_owned(),
                release: "web".to_owned(),
            },
            revision: "abc".to_owned(),
            from: Some("v1".to_owned()),
            to: "v2".to_owned(),
            direction: Direction::Forward,
            effects: Digest::of(b"effects"),
            removal: false,
            objects: vec![
                object("new", Action::Create),
                object("old", Action::Delete),
                object("same", Action::Unchanged),
                object("web", Action::Update),
            ],
        }],
    }
}

fn release(file: &mut PlanFile) -> &mut ReviewedRelease {
    &mut file.releases[0]
}

fn named<'f>(file: &'f mut PlanFile, name: &str) -> &'f mut ReviewedObject {
    release(file)
        .objects
        .iter_mut()
        .find(|object| object.object.name == name)
        .unwrap()
}

/// Returns the first difference as text.
fn check(change: fn(&mut PlanFile)) -> String {
    let mut now = reviewed();
    change(&mut now);
    let moved = reviewed().moved(&now);
    moved.first().map_or_else(
        || "nothing".to_owned(),
        |finding| match &finding.object {
            Some(object) => format!("{object}: {}", finding.message),
            None => finding.message.clone(),
        },
    )
}

#[rstest]
#[case::nothing(|_: &mut PlanFile| {}, "nothing")]
#[case::another_commit_with_the_same_content(|now: &mut PlanFile| release(now).revision = "def".into(), "nothing")]
#[case::repository(|now: &mut PlanFile| now.repository = "other".into(), "the plan is for repository fleet, but this repository is other")]
#[case::cluster(|now: &mut PlanFile| now.cluster = ClusterId("d".into()), "the plan is for cluster c, but this cluster is d")]
#[case::release_gone(|now: &mut PlanFile| now.releases.clear(), "release dev.web is no longer planned")]
#[case::release_more(|now: &mut PlanFile| { let mut more = now.releases[0].clone(); more.release.release = "db".into(); now.releases.push(more); }, "the plan does not contain release dev.db")]
#[case::installed(|now: &mut PlanFile| release(now).from = Some("v0".into()), "release dev.web: the installed version is v0, but was v1")]
#[case::desired(|now: &mut PlanFile| release(now).to = "v3".into(), "release dev.web: the desired version is v3, but was v2")]
#[case::content(|now: &mut PlanFile| named(now, "web").digest = Some(DesiredDigest::Known(Digest::of(b"x"))), "ConfigMap/web/web: its desired state in git changed")]
#[case::action(|now: &mut PlanFile| named(now, "same").action = Action::Update, "ConfigMap/web/same: the plan was to leave it as it is, but the new plan is to update it")]
#[case::blocked(|now: &mut PlanFile| named(now, "web").action = Action::Blocked, "ConfigMap/web/web: the plan was to update it, but the new plan is to leave it blocked")]
#[case::deleted(|now: &mut PlanFile| named(now, "same").action = Action::Create, "ConfigMap/web/same: the plan was to leave it as it is, but the new plan is to create it")]
#[case::left_git(|now: &mut PlanFile| named(now, "same").action = Action::Delete, "ConfigMap/web/same: the plan was to leave it as it is, but the new plan is to delete it")]
#[case::retained(|now: &mut PlanFile| named(now, "old").action = Action::Skip, "ConfigMap/web/old: the plan was to delete it, but the new plan is to skip it")]
#[case::applied(|now: &mut PlanFile| named(now, "new").action = Action::Unchanged, "ConfigMap/web/new: the plan was to create it, but the new plan is to leave it as it is")]
#[case::foreign(|now: &mut PlanFile| named(now, "new").action = Action::Blocked, "ConfigMap/web/new: the plan was to create it, but the new plan is to leave it blocked")]
#[case::object_more(|now: &mut PlanFile| release(now).objects.push(object("more", Action::Create)), "ConfigMap/web/more: the plan does not contain it, but the new plan is to create it")]
#[case::appeared(|now: &mut PlanFile| { named(now, "new").action = Action::Adopt; }, "ConfigMap/web/new: the plan was to create it, but the new plan is to adopt it")]
#[case::recreated(|now: &mut PlanFile| named(now, "web").require[0] = Precondition::Uid("v".into()), "ConfigMap/web/web: it was deleted and recreated")]
#[case::drifted(|now: &mut PlanFile| named(now, "web").require[1] = Precondition::Fingerprint(Digest::of(b"x")), "ConfigMap/web/web: a client changed it in the cluster")]
#[case::not_pruned(|now: &mut PlanFile| release(now).objects.retain(|one| one.object.name != "old"), "ConfigMap/web/old: the plan was to delete it, but the new plan does not contain it")]
#[case::pruned_more(|now: &mut PlanFile| release(now).objects.push(object("more", Action::Delete)), "ConfigMap/web/more: the plan does not contain it, but the new plan is to delete it")]
#[case::other_steps(|now: &mut PlanFile| release(now).effects = Digest::of(b"x"), "release dev.web: the steps differ from the reviewed ones")]
fn changed_inputs_are_named(#[case] change: fn(&mut PlanFile), #[case] expected: &str) {
    assert_eq!(check(change), expected);
}

#[test]
fn another_target_is_refused_by_policy_and_another_state_is_a_conflict() {
    type Change = fn(&mut PlanFile);
    let kinds = |change: Change| {
        let mut now = reviewed();
        change(&mut now);
        let moved = reviewed().moved(&now);
        moved.iter().map(|one| one.kind).collect::<Vec<_>>()
    };
    let cases: [(&str, Change, Kind); 6] = [
        (
            "repository",
            |now| now.repository = "other".to_owned(),
            Kind::Policy,
        ),
        (
            "cluster",
            |now| now.cluster = ClusterId("d".to_owned()),
            Kind::Policy,
        ),
        ("release", |now| now.releases.clear(), Kind::Conflict),
        (
            "version",
            |now| release(now).to = "v3".to_owned(),
            Kind::Conflict,
        ),
        (
            "object",
            |now| named(now, "same").action = Action::Update,
            Kind::Conflict,
        ),
        (
            "steps",
            |now| release(now).effects = Digest::of(b"x"),
            Kind::Conflict,
        ),
    ];
    for (name, change, expected) in cases {
        assert_eq!(kinds(change), [expected], "{name}");
    }
}

#[test]
fn a_commit_is_no_version() {
    let mut before = reviewed();
    release(&mut before).to = "abc".to_owned();
    let mut now = reviewed();
    release(&mut now).to = "def".to_owned();
    release(&mut now).revision = "def".to_owned();
    assert_eq!(before.moved(&now), []);
}

#[test]
fn the_key_may_be_made_in_between() {
    let mut before = reviewed();
    named(&mut before, "web").digest = Some(DesiredDigest::Unkeyed);
    let mut now = reviewed();
    release(&mut now).effects = Digest::of(b"with digests");
    assert_eq!(before.moved(&now), []);
}

#[test]
fn all_changed_inputs_are_reported_at_once() {
    let mut now = reviewed();
    named(&mut now, "web").digest = Some(DesiredDigest::Known(Digest::of(b"x")));
    named(&mut now, "same").require.clear();
    assert_eq!(reviewed().moved(&now).len(), 2);
}

#[test]
fn a_file_round_trips_and_newer_formats_are_refused() {
    let bytes = serde_json::to_vec(&reviewed()).unwrap();
    assert_eq!(PlanFile::read(&bytes).unwrap(), reviewed());
    assert!(matches!(
        PlanFile::read(br#"{"format": 2, "releases": 7}"#),
        Err(PlanFileError::Newer { found: 2 })
    ));
    assert!(matches!(
        PlanFile::read(b"{}"),
        Err(PlanFileError::Parse(_))
    ));
}

/// Bytes of the first format, which later versions must still read.
#[test]
fn format_1_is_read() {
    let bytes = br#"{"format":1,"writtenBy":"0.1.0","repository":"fleet","cluster":"c","releases":[
        {"release":{"environment":"dev","release":"web"},"revision":"abc","from":"v1","to":"v2",
         "direction":"forward","effects":"sha256:0000000000000000000000000000000000000000000000000000000000000000",
         "objects":[{"object":"ConfigMap/web/new","action":"create","require":["absent"],
           "digest":"unkeyed"}]}]}"#;
    let file = PlanFile::read(bytes).unwrap();
    assert_eq!(file.releases[0].objects[0].object, id("new"));
    assert_eq!(
        file.releases[0].objects[0].digest,
        Some(DesiredDigest::Unkeyed)
    );
}
