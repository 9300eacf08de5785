{{- define "loramux.name" -}}
{{- if contains "loramux" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-loramux" (.Release.Name | trunc 32 | trimSuffix "-") }}{{ end -}}
{{- end -}}

{{/* Labels of one part: call with (dict "root" $ "part" "server"). */}}
{{- define "loramux.selector" -}}
app.kubernetes.io/name: loramux
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "loramux.labels" -}}
{{ include "loramux.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "loramux.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "loramux.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "loramux.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "loramux.servers" -}}
dns:{{ include "loramux.name" . }}-servers.{{ .Release.Namespace }}.svc:8000
{{- end -}}

{{/* A server at each port of the pool's pods. */}}
{{- define "loramux.poolServers" -}}
{{- range $i, $port := .Values.inferencePool.targetPorts }}{{ if $i }},{{ end }}dns:{{ include "loramux.name" $ }}-servers.{{ $.Release.Namespace }}.svc:{{ $port }}{{ end -}}
{{- end -}}

{{- define "loramux.etcdArgs" -}}
{{- with .Values.etcd.urls }}
- --etcd
- {{ join "," . | quote }}
{{- end }}
{{- end -}}
