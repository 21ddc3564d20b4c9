{{- define "common.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- define "common.merge" -}}
{{- $override := fromYaml (include (index . 1) (index . 0)) | default dict -}}
{{- toYaml (merge $override (dict "metadata" (dict "labels" (dict "merged" "yes")))) -}}
{{- end }}
