//! Finds the field path of a YAML line for the header of a hunk.

/// Returns the fields around a line, such as `spec.template.spec.containers[app]`.
///
/// `lines` are the lines of one emitted object. The result is empty at the top level.
pub(super) fn section(lines: &[&str], line: usize) -> String {
    let Some(text) = lines.get(line) else {
        return String::new();
    };
    let mut steps: Vec<String> = Vec::new();
    let mut depth = depth(text);
    for (index, text) in lines[..line].iter().enumerate().rev() {
        if text.trim().is_empty() {
            continue;
        }
        let here = self::depth(text);
        if here >= depth {
            continue;
        }
        depth = here;
        let content = text.trim_start();
        if let Some(item) = content.strip_prefix("- ") {
            let (name, below) = (name_of(lines, index), key(item));
            // The first field of an item is on the same line as the dash. It encloses the requested
            // line only if that line is indented further than the item.
            let indent = text.len() - content.len() + 2;
            let inner = below.filter(|_| steps_into(lines, index, line, indent));
            if let Some(inner) = inner {
                steps.push(inner.to_owned());
            }
            steps.push(format!("[{}]", name.unwrap_or_default()));
        } else if let Some(key) = key(content) {
            steps.push(key.to_owned());
        }
        if depth == 0 {
            break;
        }
    }
    steps.reverse();
    let mut section = String::new();
    for step in steps {
        if !section.is_empty() && !step.starts_with('[') {
            section.push('.');
        }
        section.push_str(&step);
    }
    section
}

/// Returns the nesting depth of a line.
///
/// A list item is deeper than the key of its list, although both have the same indentation.
fn depth(text: &str) -> usize {
    let content = text.trim_start();
    let indent = text.len() - content.len();
    indent * 2 + usize::from(content.starts_with("- "))
}

/// Returns the key of a `key: value` line. `None` for any other line.
fn key(content: &str) -> Option<&str> {
    let (key, _) = content.split_once(':')?;
    let key = key.trim_matches(['"', '\'']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    (!key.is_empty() && key.chars().all(is_plain)).then_some(key)
}

/// Returns whether a line is below the first field of an item.
fn steps_into(lines: &[&str], item: usize, line: usize, indent: usize) -> bool {
    let is_below = |text: &&str| {
        let own = text.len() - text.trim_start().len();
        own > indent || (own == indent && text.trim_start().starts_with("- "))
    };
    lines[item + 1..=line].iter().all(is_below)
}

/// Returns the `name` of the item that starts at a line.
fn name_of<'a>(lines: &[&'a str], item: usize) -> Option<&'a str> {
    let first = lines[item];
    let indent = first.len() - first.trim_start().len() + 2;
    let fields = std::iter::once(first.get(indent..)?).chain(
        lines[item + 1..]
            .iter()
            .take_while(|text| text.len() - text.trim_start().len() >= indent)
            .filter_map(|text| text.get(indent..)),
    );
    fields
        .filter_map(|field| field.strip_prefix("name: "))
        .map(|name| name.trim_matches(['"', '\'']))
        .next()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TEXT: &str = "\
kind: Deployment
spec:
  replicas: 1
  template:
    spec:
      containers:
      - args:
        - -v
        env:
        - name: A
          value: x
        image: web
        name: app
      - name: side
        ports:
        - containerPort: 80
data:
  app.conf: |
    a: 1
    b: 2
";

    #[rstest]
    #[case("kind: Deployment", "")]
    #[case("  replicas: 1", "spec")]
    #[case("        - -v", "spec.template.spec.containers[app].args")]
    #[case("          value: x", "spec.template.spec.containers[app].env[A]")]
    #[case("        image: web", "spec.template.spec.containers[app]")]
    #[case(
        "        - containerPort: 80",
        "spec.template.spec.containers[side].ports"
    )]
    #[case("    b: 2", "data.app.conf")]
    fn lines_are_found(#[case] line: &str, #[case] expected: &str) {
        let lines: Vec<&str> = TEXT.lines().collect();
        let index = lines.iter().position(|one| *one == line).unwrap();
        assert_eq!(section(&lines, index), expected);
    }
}
