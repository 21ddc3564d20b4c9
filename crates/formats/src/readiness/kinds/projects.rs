//! List of the files of the table: the only code that names projects.

use std::sync::OnceLock;

use super::{Project, Row};

macro_rules! project {
    ($name:literal, $groups:expr) => {{
        static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
        Project {
            #[cfg(test)]
            name: $name,
            groups: &$groups,
            #[cfg(test)]
            text: include_str!(concat!($name, ".yaml")),
            rules: include_str!(concat!(env!("OUT_DIR"), "/kinds/", $name, ".yaml")),
            rows: &ROWS,
        }
    }};
}

/// The files, by name. Each group of a file is listed here.
pub(super) static PROJECTS: &[Project] = &[
    project!(
        "actions-runner-controller",
        ["actions.github.com", "actions.summerwind.dev"]
    ),
    project!("amd-gpu-operator", ["amd.com"]),
    project!(
        "ansible-automation-platform",
        [
            "aap.ansible.com",
            "automationcontroller.ansible.com",
            "automationhub.ansible.com",
            "eda.ansible.com"
        ]
    ),
    project!("apache-spark", ["spark.apache.org"]),
    project!("apisix", ["apisix.apache.org"]),
    project!("arangodb", ["backup.arangodb.com", "database.arangodb.com"]),
    project!("argo", ["argoproj.io"]),
    project!("artemis", ["broker.amq.io"]),
    project!(
        "assisted-installer",
        ["agent-install.openshift.io", "extensions.hive.openshift.io"]
    ),
    project!("aws-app-mesh", ["appmesh.k8s.aws"]),
    project!(
        "aws-controllers",
        ["*.services.k8s.aws", "elbv2.k8s.aws", "services.k8s.aws"]
    ),
    project!("awx", ["awx.ansible.com"]),
    project!("azure-application-gateway", ["alb.networking.azure.io"]),
    project!("azure-service-operator", ["*.azure.com"]),
    project!("calico", ["operator.tigera.io"]),
    project!("camel-k", ["camel.apache.org"]),
    project!("capsule", ["capsule.clastix.io"]),
    project!("carvel", ["kappctrl.k14s.io", "packaging.carvel.dev"]),
    project!(
        "cassandra",
        [
            "cassandra.datastax.com",
            "control.k8ssandra.io",
            "k8ssandra.io",
            "medusa.k8ssandra.io"
        ]
    ),
    project!(
        "cert-manager",
        [
            "acme.cert-manager.io",
            "cert-manager.io",
            "policy.cert-manager.io"
        ]
    ),
    project!("chaos-mesh", ["chaos-mesh.org"]),
    project!("cilium", ["cilium.io"]),
    project!("claudie", ["claudie.io"]),
    project!(
        "clickhouse",
        ["clickhouse-keeper.altinity.com", "clickhouse.altinity.com"]
    ),
    project!("cloudnative-pg", ["postgresql.cnpg.io"]),
    project!(
        "cluster-api",
        [
            "addons.cluster.x-k8s.io",
            "bootstrap.cluster.x-k8s.io",
            "cluster.x-k8s.io",
            "controlplane.cluster.x-k8s.io"
        ]
    ),
    project!("cluster-api-operator", ["operator.cluster.x-k8s.io"]),
    project!("cluster-api-providers", ["infrastructure.cluster.x-k8s.io"]),
    project!(
        "cluster-autoscaler",
        ["autoscaling.k8s.io", "autoscaling.x-k8s.io"]
    ),
    project!("cockroachdb", ["crdb.cockroachlabs.com"]),
    project!("coherence", ["coherence.oracle.com"]),
    project!("compliance-operator", ["compliance.openshift.io"]),
    project!(
        "config-connector",
        [
            "*.cnrm.cloud.google.com",
            "configsync.gke.io",
            "core.cnrm.cloud.google.com"
        ]
    ),
    project!("confluent", ["platform.confluent.io"]),
    project!("consul", ["consul.hashicorp.com"]),
    project!("contour", ["projectcontour.io"]),
    project!("couchbase", ["couchbase.com"]),
    project!(
        "crossplane",
        [
            "*.crossplane.io",
            "*.upbound.io",
            "apiextensions.crossplane.io",
            "helm.crossplane.io",
            "helm.m.crossplane.io",
            "kubernetes.crossplane.io",
            "kubernetes.m.crossplane.io",
            "ops.crossplane.io",
            "pkg.crossplane.io",
            "protection.crossplane.io"
        ]
    ),
    project!("crunchy-postgres", ["postgres-operator.crunchydata.com"]),
    project!("dask", ["kubernetes.dask.org"]),
    project!("datadog-operator", ["datadoghq.com"]),
    project!("debezium", ["debezium.io"]),
    project!("dell-csm", ["storage.dell.com"]),
    project!("doris-operator", ["doris.selectdb.com"]),
    project!("dragonfly", ["dragonflydb.io"]),
    project!("druid-operator", ["druid.apache.org"]),
    project!("dynatrace", ["dynatrace.com"]),
    project!("edb-postgres", ["postgresql.k8s.enterprisedb.io"]),
    project!(
        "elastic-cloud-on-kubernetes",
        [
            "agent.k8s.elastic.co",
            "apm.k8s.elastic.co",
            "beat.k8s.elastic.co",
            "elasticsearch.k8s.elastic.co",
            "enterprisesearch.k8s.elastic.co",
            "kibana.k8s.elastic.co",
            "logstash.k8s.elastic.co",
            "maps.k8s.elastic.co",
            "stackconfigpolicy.k8s.elastic.co"
        ]
    ),
    project!("emissary", ["getambassador.io"]),
    project!("emqx", ["apps.emqx.io"]),
    project!("envoy-gateway", ["gateway.envoyproxy.io"]),
    project!("external-dns", ["externaldns.k8s.io"]),
    project!("external-secrets", ["external-secrets.io"]),
    project!("flagger", ["flagger.app"]),
    project!("flink-operator", ["flink.apache.org"]),
    project!("fluid", ["data.fluid.io"]),
    project!(
        "flux",
        [
            "helm.toolkit.fluxcd.io",
            "image.toolkit.fluxcd.io",
            "infra.contrib.fluxcd.io",
            "kustomize.toolkit.fluxcd.io",
            "notification.toolkit.fluxcd.io",
            "source.toolkit.fluxcd.io"
        ]
    ),
    project!("flux-operator", ["fluxcd.controlplane.io"]),
    project!("foundationdb", ["apps.foundationdb.org"]),
    project!(
        "gardener",
        [
            "core.gardener.cloud",
            "druid.gardener.cloud",
            "resources.gardener.cloud"
        ]
    ),
    project!(
        "gatekeeper",
        [
            "constraints.gatekeeper.sh",
            "mutations.gatekeeper.sh",
            "templates.gatekeeper.sh"
        ]
    ),
    project!(
        "gateway-api",
        [
            "gateway.networking.k8s.io",
            "gateway.networking.x-k8s.io",
            "inference.networking.k8s.io"
        ]
    ),
    project!("gitlab", ["apps.gitlab.com"]),
    project!("gitops-promoter", ["promoter.argoproj.io"]),
    project!(
        "gloo",
        [
            "enterprise.gloo.solo.io",
            "gateway.solo.io",
            "gloo.solo.io",
            "ratelimit.solo.io"
        ]
    ),
    project!("google-kubernetes-engine", ["networking.gke.io"]),
    project!("grafana-operator", ["grafana.integreatly.org"]),
    project!("harbor", ["goharbor.io"]),
    project!("harvester", ["harvesterhci.io"]),
    project!(
        "hashicorp-vault",
        [
            "redhatcop.redhat.io",
            "secrets.hashicorp.com",
            "vault.banzaicloud.com"
        ]
    ),
    project!("hazelcast", ["hazelcast.com"]),
    project!("hcp-terraform", ["app.terraform.io"]),
    project!("hierarchical-namespaces", ["hnc.x-k8s.io"]),
    project!("humio-operator", ["core.humio.com"]),
    project!("hypershift", ["hypershift.openshift.io"]),
    project!("infinispan", ["infinispan.org"]),
    project!("infisical", ["secrets.infisical.com"]),
    project!("intel-device-plugins", ["deviceplugin.intel.com"]),
    project!(
        "istio",
        [
            "extensions.istio.io",
            "install.istio.io",
            "maistra.io",
            "networking.istio.io",
            "sailoperator.io",
            "security.istio.io",
            "telemetry.istio.io"
        ]
    ),
    project!("jaeger-operator", ["jaegertracing.io"]),
    project!("jenkins", ["jenkins.io"]),
    project!("jobset", ["jobset.x-k8s.io"]),
    project!("k6", ["k6.io"]),
    project!("k8gb", ["k8gb.absa.oss"]),
    project!("k8up", ["k8up.io"]),
    project!("kaito", ["kaito.sh"]),
    project!("kamaji", ["kamaji.clastix.io"]),
    project!("kanister", ["cr.kanister.io"]),
    project!("kargo", ["kargo.akuity.io"]),
    project!(
        "karmada",
        [
            "autoscaling.karmada.io",
            "cluster.karmada.io",
            "operator.karmada.io",
            "policy.karmada.io",
            "work.karmada.io"
        ]
    ),
    project!(
        "karpenter",
        [
            "karpenter.azure.com",
            "karpenter.k8s.aws",
            "karpenter.k8s.gcp",
            "karpenter.sh"
        ]
    ),
    project!("kasten", ["actions.kio.kasten.io", "config.kio.kasten.io"]),
    project!("keda", ["http.keda.sh", "keda.sh"]),
    project!("kernel-module-management", ["kmm.sigs.x-k8s.io"]),
    project!("keycloak", ["k8s.keycloak.org", "keycloak.org"]),
    project!("kiali", ["kiali.io"]),
    project!(
        "knative",
        [
            "eventing.knative.dev",
            "flows.knative.dev",
            "messaging.knative.dev",
            "networking.internal.knative.dev",
            "operator.knative.dev",
            "serving.knative.dev",
            "sources.knative.dev"
        ]
    ),
    project!(
        "kong",
        ["configuration.konghq.com", "gateway-operator.konghq.com"]
    ),
    project!(
        "konveyor",
        ["forklift.konveyor.io", "migration.openshift.io"]
    ),
    project!("koperator", ["kafka.banzaicloud.io"]),
    project!("kro", ["kro.run"]),
    project!("kserve", ["serving.kserve.io"]),
    project!(
        "kuadrant",
        [
            "authorino.kuadrant.io",
            "kuadrant.io",
            "limitador.kuadrant.io",
            "operator.authorino.kuadrant.io"
        ]
    ),
    project!(
        "kubeblocks",
        [
            "apps.kubeblocks.io",
            "dataprotection.kubeblocks.io",
            "operations.kubeblocks.io"
        ]
    ),
    project!("kubedb", ["kubedb.com", "ops.kubedb.com"]),
    project!("kubefed", ["types.kubefed.io"]),
    project!(
        "kubeflow",
        [
            "kubeflow.org",
            "tensorboard.kubeflow.org",
            "trainer.kubeflow.org"
        ]
    ),
    project!("kubevela", ["core.oam.dev", "terraform.core.oam.dev"]),
    project!(
        "kubevirt",
        [
            "cdi.kubevirt.io",
            "clone.kubevirt.io",
            "export.kubevirt.io",
            "hco.kubevirt.io",
            "kubevirt.io",
            "networkaddonsoperator.network.kubevirt.io",
            "pool.kubevirt.io",
            "snapshot.kubevirt.io",
            "ssp.kubevirt.io"
        ]
    ),
    project!("kubewarden", ["policies.kubewarden.io"]),
    project!("kueue", ["kueue.x-k8s.io"]),
    project!(
        "kyma",
        [
            "gateway.kyma-project.io",
            "operator.kyma-project.io",
            "serverless.kyma-project.io"
        ]
    ),
    project!("kyverno", ["kyverno.io", "policies.kyverno.io"]),
    project!("leaderworkerset", ["leaderworkerset.x-k8s.io"]),
    project!("linkerd", ["policy.linkerd.io"]),
    project!("litmus", ["litmuschaos.io"]),
    project!("logging-operator", ["logging.banzaicloud.io"]),
    project!("loki-operator", ["loki.grafana.com"]),
    project!("longhorn", ["longhorn.io"]),
    project!("mariadb-operator", ["k8s.mariadb.com"]),
    project!(
        "medik8s",
        ["nodemaintenance.medik8s.io", "remediation.medik8s.io"]
    ),
    project!("metal3", ["metal3.io"]),
    project!("milvus", ["milvus.io"]),
    project!("minio", ["job.min.io", "minio.min.io"]),
    project!("moco", ["moco.cybozu.com"]),
    project!(
        "mongodb",
        [
            "atlas.mongodb.com",
            "mongodb.com",
            "mongodbcommunity.mongodb.com"
        ]
    ),
    project!("multicluster-services", ["multicluster.x-k8s.io"]),
    project!("mysql-operator", ["mysql.oracle.com"]),
    project!("nats", ["jetstream.nats.io"]),
    project!("network-policy-api", ["policy.networking.k8s.io"]),
    project!("nginx-ingress", ["k8s.nginx.org"]),
    project!("nmstate", ["nmstate.io"]),
    project!(
        "node-feature-discovery",
        ["nfd.kubernetes.io", "nfd.openshift.io"]
    ),
    project!("numaflow", ["numaflow.numaproj.io"]),
    project!("numaplane", ["numaplane.numaproj.io"]),
    project!("nutanix-databases", ["ndb.nutanix.com"]),
    project!("nvidia", ["apps.nvidia.com", "mellanox.com", "nvidia.com"]),
    project!("onepassword", ["onepassword.com"]),
    project!(
        "open-cluster-management",
        [
            "addon.open-cluster-management.io",
            "cluster.open-cluster-management.io",
            "multicluster.openshift.io",
            "observability.open-cluster-management.io",
            "operator.open-cluster-management.io",
            "policy.open-cluster-management.io",
            "work.open-cluster-management.io"
        ]
    ),
    project!(
        "open-liberty",
        [
            "apps.openliberty.io",
            "liberty.websphere.ibm.com",
            "rc.app.stacks"
        ]
    ),
    project!("openkruise", ["apps.kruise.io", "rollouts.kruise.io"]),
    project!("opensearch", ["opensearch.opster.io", "opensearch.org"]),
    project!(
        "openshift",
        [
            "apps.openshift.io",
            "build.openshift.io",
            "config.openshift.io",
            "hive.openshift.io",
            "ingress.operator.openshift.io",
            "machine.openshift.io",
            "machineconfiguration.openshift.io",
            "operator.openshift.io",
            "route.openshift.io"
        ]
    ),
    project!(
        "openshift-data-foundation",
        ["lvm.topolvm.io", "noobaa.io", "ocs.openshift.io"]
    ),
    project!("opentelemetry-operator", ["opentelemetry.io"]),
    project!(
        "operator-lifecycle-manager",
        ["olm.operatorframework.io", "operators.coreos.com"]
    ),
    project!("ory", ["hydra.ory.sh", "oathkeeper.ory.sh"]),
    project!(
        "percona",
        [
            "pgv2.percona.com",
            "ps.percona.com",
            "psmdb.percona.com",
            "pxc.percona.com"
        ]
    ),
    project!("piraeus", ["piraeus.io"]),
    project!("portworx", ["core.libopenstorage.org"]),
    project!("prometheus-operator", ["monitoring.coreos.com"]),
    project!("pulsar", ["resource.streamnative.io"]),
    project!("pulumi", ["pulumi.com"]),
    project!("quay", ["quay.redhat.com"]),
    project!("rabbitmq", ["rabbitmq.com"]),
    project!(
        "rancher",
        [
            "catalog.cattle.io",
            "fleet.cattle.io",
            "helm.cattle.io",
            "management.cattle.io",
            "provisioning.cattle.io",
            "upgrade.cattle.io"
        ]
    ),
    project!("ray", ["ray.io"]),
    project!("redis", ["app.redislabs.com", "redis.redis.opstreelabs.in"]),
    project!(
        "redpanda",
        ["cluster.redpanda.com", "redpanda.vectorized.io"]
    ),
    project!("risingwave", ["risingwave.risingwavelabs.com"]),
    project!("rook", ["ceph.rook.io", "objectbucket.io"]),
    project!("schemahero", ["databases.schemahero.io"]),
    project!("scylladb", ["scylla.scylladb.com"]),
    project!("sealed-secrets", ["bitnami.com"]),
    project!(
        "security-profiles-operator",
        ["security-profiles-operator.x-k8s.io"]
    ),
    project!("seldon", ["machinelearning.seldon.io", "mlops.seldon.io"]),
    project!("shipwright", ["shipwright.io"]),
    project!("skupper", ["skupper.io"]),
    project!("sloth", ["sloth.slok.dev"]),
    project!("solr", ["solr.apache.org"]),
    project!("sonataflow", ["sonataflow.org"]),
    project!("sops-secrets-operator", ["isindir.github.com"]),
    project!("spark-operator", ["sparkoperator.k8s.io"]),
    project!("spinkube", ["core.spinkube.dev"]),
    project!("spire", ["spire.spiffe.io"]),
    project!("splunk-operator", ["enterprise.splunk.com"]),
    project!("sriov-network-operator", ["sriovnetwork.openshift.io"]),
    project!(
        "stackable",
        [
            "airflow.stackable.tech",
            "druid.stackable.tech",
            "hbase.stackable.tech",
            "hdfs.stackable.tech",
            "hive.stackable.tech",
            "kafka.stackable.tech",
            "nifi.stackable.tech",
            "opa.stackable.tech",
            "spark.stackable.tech",
            "superset.stackable.tech",
            "trino.stackable.tech",
            "zookeeper.stackable.tech"
        ]
    ),
    project!("stackgres", ["stackgres.io"]),
    project!("stackrox", ["platform.stackrox.io"]),
    project!("stash", ["core.kubestash.com", "stash.appscode.com"]),
    project!("strimzi", ["core.strimzi.io", "kafka.strimzi.io"]),
    project!("sveltos", ["config.projectsveltos.io"]),
    project!(
        "tekton",
        ["operator.tekton.dev", "tekton.dev", "triggers.tekton.dev"]
    ),
    project!("tempo-operator", ["tempo.grafana.com"]),
    project!("temporal", ["temporal.io"]),
    project!(
        "terraform-operator",
        ["tf.galleybytes.com", "tf.isaaguilar.com"]
    ),
    project!("threescale", ["apps.3scale.net"]),
    project!("tidb", ["pingcap.com"]),
    project!("tinkerbell", ["tinkerbell.org"]),
    project!("trident", ["trident.netapp.io"]),
    project!("trust-manager", ["trust.cert-manager.io"]),
    project!("velero", ["velero.io"]),
    project!("victoriametrics", ["operator.victoriametrics.com"]),
    project!("vitess", ["planetscale.com"]),
    project!(
        "volcano",
        [
            "batch.volcano.sh",
            "flow.volcano.sh",
            "scheduling.volcano.sh"
        ]
    ),
    project!("volsync", ["volsync.backube"]),
    project!(
        "volume-snapshots",
        ["groupsnapshot.storage.k8s.io", "snapshot.storage.k8s.io"]
    ),
    project!("weblogic", ["weblogic.oracle"]),
    project!("wildfly-operator", ["wildfly.org"]),
    project!("yugabytedb", ["operator.yugabyte.io"]),
    project!("zalando-postgres-operator", ["acid.zalan.do"]),
    project!("zookeeper-operator", ["zookeeper.pravega.io"]),
];
