//! Notification messages from user templates.

use serde_json::Value;

use super::engine::Engine;
use pleach_model::finding::{Finding, Kind};

/// Maximum length of a message, in bytes.
const LONGEST: usize = 64 * 1024;

/// Renders a message, with the limits of all templates: no files, bounded steps, only `context`.
/// `name` is the template's name in findings.
///
/// ```
/// use pleach_render::message;
/// let context = serde_json::json!({"release": "web"});
/// assert_eq!(message("chat", "{{ release }} is there", &context).unwrap(), "web is there");
/// assert!(message("chat", "{{ missing }}", &context).is_err());
/// ```
pub fn message(name: &str, source: &str, context: &Value) -> Result<String, Box<Finding>> {
    let text = Engine::of_message(context).render_text(name, source)?;
    if text.len() > LONGEST {
        let message = format!("the message is longer than {LONGEST} bytes");
        return Err(Box::new(Finding::error(
            Kind::Repository,
            "template-limit",
            message,
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_has_the_limits_of_templates() {
        let context = json!({"release": "web", "message": "a \"b\"\nc"});
        let rendered = message(
            "m",
            "{\"text\": {{ (release ~ ': ' ~ message) | tojson }}}",
            &context,
        );
        let rendered: Value = serde_json::from_str(&rendered.unwrap()).unwrap();
        assert_eq!(rendered["text"], "web: a \"b\"\nc");
        for refused in [
            "{% include 'a.j2' %}",
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{{ debug() }}",
            "{% for i in range(70000) %}x{% endfor %}",
            "{{ release",
        ] {
            assert!(message("m", refused, &context).is_err(), "{refused}");
        }
    }
}
