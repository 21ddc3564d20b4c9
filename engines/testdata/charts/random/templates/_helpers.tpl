{{- define "random.password" -}}
{{ .Values.auth.password | default (randAlphaNum 12) }}
{{- end -}}
