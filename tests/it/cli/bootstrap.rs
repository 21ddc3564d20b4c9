use super::Folder;

const URL: &str = "https://git.example.org/fleet.git";
const IMAGE: &str = "registry.example.org/pleach@sha256:0000000000000000000000000000000000000000000000000000000000000000";
const CONFIG: &str = "apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: \"http://127.0.0.1:9\"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
";

#[test]
fn wrong_usage_names_the_option() {
    let folder = Folder::new();
    folder.write("token", "Xq7hush9vB2\n");
    folder.write("words", "two words\n");
    folder.write("empty", "\n");
    folder.write("config", CONFIG);
    let sound = [
        "bootstrap",
        "--kubeconfig",
        "config",
        "--url",
        URL,
        "--token-file",
        "token",
        "--image",
        IMAGE,
        "--allow-all",
    ];
    let without = |option: &str, values: usize| -> Vec<&str> {
        let at = sound.iter().position(|one| *one == option).unwrap();
        let mut args = sound.to_vec();
        args.drain(at..=at + values);
        args
    };
    let with = |option: &str, value: &'static str| -> Vec<&str> {
        let mut args = sound.to_vec();
        match args.iter().position(|one| *one == option) {
            Some(at) => args[at + 1] = value,
            None if value.is_empty() => args.push(option.to_owned().leak()),
            None => args.extend([option.to_owned().leak(), value]),
        }
        args
    };
    for (args, expected) in [
        (without("--allow-all", 0), "--allow-namespaces PATTERN"),
        (without("--allow-all", 0), "--allow-all"),
        (with("--allow-namespaces", "a"), "cannot be used with"),
        (without("--image", 1), "--image REF@sha256:DIGEST"),
        (
            with("--image", "registry.example.org/pleach:v1"),
            "has no digest",
        ),
        (without("--token-file", 1), "https needs --token-file"),
        (
            with("--token-file", "words"),
            "words has more than one word",
        ),
        (with("--token-file", "empty"), "empty has no token"),
        (with("--url", "/srv/fleet"), "--url: "),
        (
            with("--url", "http://git.example.org/fleet.git"),
            "credentials are sent over https only",
        ),
        (
            with("--url", "https://ann:Xq7hush9vB2@git.example.org/x"),
            "not in the URL",
        ),
        (
            with("--url", "git@git.example.org:fleet.git"),
            "ssh needs --ssh-key-file",
        ),
        (with("--ssh-key-file", "token"), "cannot be used with"),
        (with("--branch", "a..b"), "--branch: `a..b`"),
        (with("--namespace", "Pleach"), "--namespace: `Pleach`"),
        (with("--rights", "namespaced"), "not supported yet"),
        (with("--repo", "."), "omit --repo"),
    ] {
        let run = folder.run(&args);
        assert_eq!(run.code, 2, "{expected}: {}", run.shown());
        assert!(run.stderr.contains(expected), "{expected}: {}", run.stderr);
        assert_eq!(run.stdout, "");
        assert!(!run.stderr.contains("Xq7hush9vB2"), "{}", run.stderr);
    }
    // Sound arguments get as far as the cluster.
    let run = folder.run(&sound);
    assert_eq!((run.code, run.stdout.as_str()), (4, ""), "{}", run.stderr);
}

#[test]
fn a_token_comes_from_the_standard_input() {
    let folder = Folder::new();
    folder.write("config", CONFIG);
    let args = [
        "bootstrap",
        "--kubeconfig",
        "config",
        "--url",
        URL,
        "--token-file",
        "-",
    ];
    let mut command = folder.command(&[&args[..], &["--allow-all", "--image", IMAGE]].concat());
    command.write_stdin("Xq7hush9vB2");
    let run = folder.finish(&mut command);
    assert_eq!(run.code, 4, "{}", run.stderr);
    let mut command = folder.command(&[&args[..], &["--allow-all", "--image", IMAGE]].concat());
    command.write_stdin("");
    let run = folder.finish(&mut command);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("the standard input has no token"),
        "{}",
        run.stderr
    );
}
