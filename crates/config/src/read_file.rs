//! Reading of pleach's own files, which are identified by `apiVersion` and `kind`.

use pleach_formats::file::API_VERSION;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Origin,
    yaml::{Content, Node, parse_nodes},
};
use pleach_model::suggest::did_you_mean;
use pleach_model::tree::{FileTree, TreeError};

/// Start of a Git LFS pointer.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Reads a text file. Fails for a file that is not UTF-8 or is a Git LFS pointer.
pub(super) fn read_text(tree: &dyn FileTree, path: &str) -> Result<String, Box<Finding>> {
    let error = |code: &str, message: &str| {
        Box::new(Finding::error(Kind::Repository, code, message).at(Origin::new(path, 0)))
    };
    let bytes = tree.read(path).map_err(|failure| match failure {
        TreeError::Missing { .. } => error("missing-file", "the file does not exist"),
        TreeError::Unreadable { reason, .. } => error(
            "unreadable-file",
            &format!("the file cannot be read: {reason}"),
        ),
    })?;
    if bytes.starts_with(LFS_POINTER) {
        let mut finding = error(
            "lfs-pointer",
            "the file is a Git LFS pointer, not the content",
        );
        finding.hint =
            Some("commit manifests to git itself; pleach does not fetch from Git LFS".to_owned());
        return Err(finding);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| error("not-text", "the file is not UTF-8 text"))
}

/// Classification of a document by its header.
pub(super) enum Header {
    /// One of pleach's own files.
    Ours,
    /// Any other document.
    Foreign,
}

/// Returns whether a document is one of our files, of one of `kinds`.
pub(super) fn header(node: &Node, kinds: &[&str]) -> Header {
    let text = |key: &str| node.get(key).and_then(Node::as_str);
    match (text("apiVersion"), text("kind")) {
        (Some(API_VERSION), Some(kind)) if kinds.contains(&kind) => Header::Ours,
        _ => Header::Foreign,
    }
}

/// Reads one of our files, which must be of `kind`.
pub fn read_own(
    tree: &dyn FileTree,
    path: &str,
    kind: &str,
    findings: &mut Vec<Finding>,
) -> Option<Node> {
    let text = match read_text(tree, path) {
        Ok(text) => text,
        Err(finding) => {
            findings.push(*finding);
            return None;
        }
    };
    let mut nodes = match parse_nodes(path, &text) {
        Ok(nodes) => nodes,
        Err(errors) => {
            findings.extend(errors.into_iter().map(|error| {
                Finding::error(Kind::Repository, "invalid-yaml", error.message)
                    .at(Origin::new(path, error.line))
            }));
            return None;
        }
    };
    let expected = format!("`apiVersion: {API_VERSION}` and `kind: {kind}`");
    let error = |line: usize, message: String| {
        Finding::error(Kind::Repository, "wrong-kind", message).at(Origin::new(path, line))
    };
    if nodes.len() > 1 {
        findings.push(error(
            nodes[1].line,
            format!("expected one document with {expected}, found a second one"),
        ));
        return None;
    }
    let Some(node) = nodes.pop() else {
        findings.push(error(0, format!("the file is empty, expected {expected}")));
        return None;
    };
    if !matches!(node.content, Content::Map(_)) {
        findings.push(error(
            node.line,
            format!("expected a map that begins with {expected}"),
        ));
        return None;
    }
    if let Header::Foreign = header(&node, &[kind]) {
        findings.push(wrong_header(&node, kind, &expected));
        return None;
    }
    Some(node)
}

/// Reports a wrong header, with the expected one.
fn wrong_header(node: &Node, kind: &str, expected: &str) -> Finding {
    let error = |line: usize, message: String| {
        Finding::error(Kind::Repository, "wrong-kind", message)
            .at(Origin::new(&*node.file, line))
            .hint(format!("a file of this kind begins with {expected}"))
    };
    let Some(api_version) = node.entry("apiVersion") else {
        return error(node.line, "`apiVersion` is required".to_owned());
    };
    match api_version.value.as_str() {
        Some(API_VERSION) => {}
        Some(other) if other.starts_with("pleach.dev/") => {
            return error(
                api_version.line,
                format!("this version of pleach does not support the format `{other}`"),
            );
        }
        _ => {
            return error(api_version.line, "this is not a pleach file".to_owned());
        }
    }
    match node.entry("kind") {
        None => error(node.line, "`kind` is required".to_owned()),
        Some(entry) => {
            let found = entry.value.as_str().unwrap_or("something else");
            let mut finding = error(
                entry.line,
                format!("expected kind `{kind}`, found `{found}`"),
            );
            if let Some(hint) = did_you_mean(found, &[kind]) {
                finding.hint = Some(hint);
            }
            finding
        }
    }
}
