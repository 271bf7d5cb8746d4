{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* What a Prometheus finds the chart's objects by. */ -}}
{{- define "sluice.monitoringLabels" -}}
{{ include "sluice.labels" . }}
{{- range $name, $value := .Values.metrics.labels }}
{{ $name }}: {{ quote $value }}
{{- end }}
{{- end }}

{{- define "sluice.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ include "sluice.tag" . }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ end }}
{{- end }}

{{- define "sluice.minor" -}}
{{ .Capabilities.KubeVersion.Minor | trimSuffix "+" }}
{{- end }}

{{- /* The kube-scheduler of the cluster's own minor version. */ -}}
{{- define "sluice.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{ $image.repository }}:{{ $image.tag | default (printf "v1.%s.0" (include "sluice.minor" .)) }}{{ if $image.digest }}@{{ $image.digest }}{{ end }}
{{- end }}

{{- /* Only a privileged container may open device files that no runtime has added. */ -}}
{{- define "sluice.nodeRights" -}}
runAsUser: 0
readOnlyRootFilesystem: true
{{- if eq .Values.devices "mounts" }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  # Pages of all users, and roots and mounts of their processes.
  add: [DAC_OVERRIDE, SYS_PTRACE]
{{- end }}
{{- end }}

{{- define "sluice.unprivileged" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end }}

{{- define "sluice.nodeEnv" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ if eq .Values.devices "mounts" }}void{{ else }}all{{ end }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- /* A regular expression for what pods request. */ -}}
{{- define "sluice.resources" -}}
^(
{{- range $index, $dialect := .Values.dialects }}
{{- if $index }}|{{ end }}
{{- if eq $dialect "vgpu-manager" }}nvidia[.]com/vgpu-.*
{{- else if eq $dialect "volcano" }}volcano[.]sh/vgpu-.*
{{- else if eq $dialect "hami" }}nvidia[.]com/gpu
{{- else }}tensor-fusion[.]ai/index(_[0-9a-f])?
{{- end }}
{{- end }})$
{{- end }}

{{- /* The gates of the extender, which binds a node's pods one after the other unless told otherwise. */ -}}
{{- define "sluice.schedulerGates" -}}
{{- $gates := list }}
{{- $serial := "SerialBindNode=true" }}
{{- range $name, $open := .Values.featureGates }}
{{- if or (eq $name "SerialBindNode") (eq $name "SerializedNodeBind") }}
{{- $serial = printf "%s=%t" $name $open }}
{{- else if or (eq $name "GPUTopology") (eq $name "TopologyAwareGPUAllocation") }}
{{- $gates = append $gates (printf "%s=%t" $name $open) }}
{{- end }}
{{- end }}
{{- join "," (append $gates $serial) }}
{{- end }}
