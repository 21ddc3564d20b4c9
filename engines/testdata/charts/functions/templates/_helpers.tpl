{{- define "functions.override" -}}
metadata:
  labels:
    own: {{ .Values.name }}
{{- end -}}
{{- define "functions.count" -}}
{{- if gt (int .) 0 }}{{ . }},{{ include "functions.count" (sub . 1) }}{{ end -}}
{{- end -}}
