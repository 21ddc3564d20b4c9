//! Generated workload: many small objects in the usual style of manifests.

use std::fmt;

use serde::Serialize;

/// Number of namespaces of a workload.
pub const NAMESPACES: usize = 20;

/// One of this many objects changes.
const ONE_PERCENT: usize = 100;

/// Text size in a ConfigMap of [`Content::ConfigMaps`]. With its metadata, the object has 2 KB.
const CONFIG_MAP_TEXT: usize = 1_850;

/// Number of settings in the ConfigMap of an application.
const SETTINGS: usize = 17;

/// Values of [`Workload::templates`], as a YAML map.
pub const TEMPLATE_VALUES: &str = "{registry: registry.example.org, version: 1.4.2, replicas: 2, ingressClass: public, requests: {cpu: 50m, memory: 64Mi}}";

/// Type of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// ConfigMaps of 2 KB.
    ConfigMaps,
    /// Applications: a ServiceAccount, a ConfigMap, a Service, a Deployment and
    /// an Ingress each, 0.86 KB per object.
    Mixed,
}

impl Content {
    /// Returns the kinds of the content, as `(API path, plural)`.
    pub fn kinds(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::ConfigMaps => &[("api/v1", "configmaps")],
            Self::Mixed => &[
                ("api/v1", "serviceaccounts"),
                ("api/v1", "configmaps"),
                ("api/v1", "services"),
                ("apis/apps/v1", "deployments"),
                ("apis/networking.k8s.io/v1", "ingresses"),
            ],
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMaps => "ConfigMaps",
            Self::Mixed => "mixed",
        })
    }
}

/// Set of objects, spread over [`NAMESPACES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Type of the objects.
    pub content: Content,
    /// Number of objects without namespaces.
    pub objects: usize,
    /// Number of unrelated objects of the same kinds in the cluster.
    pub foreign: usize,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.objects, self.content)?;
        if self.foreign > 0 {
            write!(f, ", {} foreign", self.foreign)?;
        }
        Ok(())
    }
}

/// File of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Name without folders.
    pub name: String,
    /// Documents.
    pub text: String,
}

impl Workload {
    /// Creates a workload without unrelated objects.
    pub fn new(content: Content, objects: usize) -> Self {
        Self {
            content,
            objects,
            foreign: 0,
        }
    }

    /// Returns the files. Revision 1 changes one percent of the objects, across all kinds.
    pub fn files(&self, revision: usize) -> Vec<File> {
        let kinds = self.content.kinds().len();
        (0..self.objects.div_ceil(kinds))
            .map(|unit| {
                let numbers = (unit * kinds..(unit + 1) * kinds).take_while(|n| *n < self.objects);
                let documents: Vec<String> = numbers
                    .map(|number| {
                        document(self.content, "bench", number, changed(number, revision))
                    })
                    .collect();
                File {
                    name: format!("unit-{unit:05}.yaml"),
                    text: documents.concat(),
                }
            })
            .collect()
    }

    /// Returns the same objects as templates, one file per application, with typical values; see
    /// [`TEMPLATE_VALUES`].
    pub fn templates(&self) -> Vec<File> {
        let mut files = self.files(0);
        for file in &mut files {
            file.name.push_str(".j2");
            for (text, expression) in [
                ("registry.example.org", "{{ values.registry }}"),
                ("\"1.4.2\"", "{{ values.version | quote }}"),
                (":1.4.2", ":{{ values.version }}"),
                ("replicas: 2", "replicas: {{ values.replicas }}"),
                ("{cpu: 50m, memory: 64Mi}", "{{ values.requests | tojson }}"),
                (
                    "  ingressClassName: public\n",
                    "{% if values.ingressClass is defined %}\n  ingressClassName: {{ values.ingressClass }}\n{% endif %}",
                ),
            ] {
                file.text = file.text.replace(text, expression);
            }
        }
        files
    }

    /// Returns one template with a loop that renders the same number of objects.
    pub fn looped(&self) -> File {
        let [unit, ..] = &Self::new(self.content, self.content.kinds().len()).templates()[..]
        else {
            return File {
                name: String::new(),
                text: String::new(),
            };
        };
        let rounds = self.objects / self.content.kinds().len();
        let text = unit
            .text
            .replace("bench-00", "bench-{{ '%02d' | format(n % 20) }}")
            .replace("00000", "{{ '%05d' | format(n) }}");
        File {
            name: "all.yaml.j2".to_owned(),
            text: format!("{{% for n in range({rounds}) %}}\n{text}{{% endfor %}}\n"),
        }
    }

    /// Returns the number of objects that revision 1 changes.
    pub fn changes(&self) -> usize {
        (0..self.objects)
            .filter(|number| changed(*number, 1) > 0)
            .count()
    }

    /// Returns the maximum number of requests to list the workload, with 500 objects per page. With
    /// unrelated objects, a full last page needs one more request.
    pub fn pages(&self) -> usize {
        let kinds = self.content.kinds().len();
        (0..kinds)
            .map(|kind| (self.objects + kinds - 1 - kind) / kinds)
            .map(|objects| objects / 500 + 1)
            .sum()
    }
}

/// Returns the name of a namespace of a group of objects.
pub fn namespace(group: &str, number: usize) -> String {
    format!("{group}-{:02}", number % NAMESPACES)
}

/// Returns the revision of one object. One percent of the objects change, in turn of each kind.
fn changed(number: usize, revision: usize) -> usize {
    let offset = (number / ONE_PERCENT) % 5;
    if number % ONE_PERCENT == offset {
        revision
    } else {
        0
    }
}

/// Returns one object as YAML. `group` is the prefix of its namespace and labels.
pub fn document(content: Content, group: &str, number: usize, revision: usize) -> String {
    match content {
        Content::ConfigMaps => config_map(group, number, revision),
        Content::Mixed => part(group, number / 5, number % 5, revision),
    }
}

fn config_map(group: &str, number: usize, revision: usize) -> String {
    let namespace = namespace(group, number);
    let text: String = (0..)
        .map(|line| {
            format!("    line {line:03} of document {number:05}: some settings of a program\n")
        })
        .scan(0, |length, line| {
            *length += line.len();
            (*length < CONFIG_MAP_TEXT).then_some(line)
        })
        .collect();
    format!(
        "---
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings-{number:05}
  namespace: {namespace}
  labels:
    app.kubernetes.io/name: settings-{number:05}
    app.kubernetes.io/part-of: {group}
data:
  revision: \"{revision}\"
  settings.txt: |
{text}"
    )
}

fn part(group: &str, application: usize, part: usize, revision: usize) -> String {
    let name = format!("app-{application:05}");
    let namespace = namespace(group, application);
    let metadata = format!(
        "metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app.kubernetes.io/name: {name}
    app.kubernetes.io/component: server
    app.kubernetes.io/version: \"1.4.2\"
    app.kubernetes.io/part-of: {group}
  annotations:
    example.org/team: team-{team}
    example.org/revision: \"{revision}\"
    example.org/runbook: https://runbooks.example.org/{name}
",
        team = application % 7
    );
    let (header, rest) = match part {
        0 => (
            "v1\nkind: ServiceAccount",
            "automountServiceAccountToken: false\n".to_owned(),
        ),
        1 => ("v1\nkind: ConfigMap", settings(&name)),
        2 => ("v1\nkind: Service", service(&name)),
        3 => ("apps/v1\nkind: Deployment", deployment(&name)),
        _ => ("networking.k8s.io/v1\nkind: Ingress", ingress(&name)),
    };
    format!("---\napiVersion: {header}\n{metadata}{rest}")
}

fn settings(name: &str) -> String {
    let lines: Vec<String> = (0..SETTINGS)
        .map(|line| format!("    server.option-{line} = value {line} of {name}\n"))
        .collect();
    let lines = lines.concat();
    format!("data:\n  LOG_LEVEL: info\n  server.properties: |\n{lines}")
}

fn service(name: &str) -> String {
    format!(
        "spec:
  selector:
    app.kubernetes.io/name: {name}
  ports:
    - name: http
      port: 80
      targetPort: http
      protocol: TCP
    - name: metrics
      port: 9090
      targetPort: metrics
      protocol: TCP
"
    )
}

fn deployment(name: &str) -> String {
    format!(
        "spec:
  replicas: 2
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      app.kubernetes.io/name: {name}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {name}
    spec:
      serviceAccountName: {name}
      containers:
        - name: server
          image: registry.example.org/{name}:1.4.2
          args: [--listen=:8080, --metrics=:9090]
          ports:
            - {{name: http, containerPort: 8080}}
            - {{name: metrics, containerPort: 9090}}
          env:
            - name: LOG_LEVEL
              valueFrom: {{configMapKeyRef: {{name: {name}, key: LOG_LEVEL}}}}
          resources:
            requests: {{cpu: 50m, memory: 64Mi}}
            limits: {{memory: 256Mi}}
          readinessProbe:
            httpGet: {{path: /ready, port: http}}
          volumeMounts:
            - {{name: settings, mountPath: /etc/server}}
      volumes:
        - name: settings
          configMap: {{name: {name}}}
"
    )
}

fn ingress(name: &str) -> String {
    format!(
        "spec:
  ingressClassName: public
  rules:
    - host: {name}.example.org
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {name}
                port:
                  name: http
  tls:
    - hosts: [{name}.example.org]
      secretName: {name}-tls
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
    fn average(workload: Workload) -> f64 {
        let bytes: usize = workload.files(0).iter().map(|file| file.text.len()).sum();
        bytes as f64 / workload.objects as f64
    }

    #[test]
    fn objects_have_the_declared_size() {
        let maps = average(Workload::new(Content::ConfigMaps, 1000));
        assert!((1_950.0..=2_050.0).contains(&maps), "{maps}");
        let mixed = average(Workload::new(Content::Mixed, 1000));
        assert!((840.0..=880.0).contains(&mixed), "{mixed}");
    }

    #[test]
    fn one_of_a_hundred_changes_over_all_kinds() {
        let workload = Workload::new(Content::Mixed, 1000);
        assert_eq!(workload.changes(), 10);
        let (old, new) = (workload.files(0), workload.files(1));
        let differ = old.iter().zip(&new).filter(|(old, new)| old != new);
        assert_eq!(differ.count(), 10);
        let kinds: std::collections::BTreeSet<usize> = (0..1000)
            .filter(|number| changed(*number, 1) > 0)
            .map(|number| number % 5)
            .collect();
        assert_eq!(kinds.len(), 5);
    }

    #[test]
    fn pages_are_counted_by_kind() {
        assert_eq!(Workload::new(Content::Mixed, 5000).pages(), 15);
        assert_eq!(Workload::new(Content::Mixed, 5005).pages(), 15);
        assert_eq!(Workload::new(Content::Mixed, 300).pages(), 5);
        assert_eq!(Workload::new(Content::ConfigMaps, 5000).pages(), 11);
    }
}
