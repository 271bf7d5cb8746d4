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

{{- /* What pods of a dialect may request, by the cluster's names, the number of GPUs first: of a list of $ and dialect. */ -}}
{{- define "sluice.resources" -}}
{{- $root := index . 0 }}
{{- $dialect := index . 1 }}
{{- $own := "" }}
{{- if eq $dialect "vgpu-manager" }}
{{- $own = "nvidia.com/vgpu-number nvidia.com/vgpu-cores nvidia.com/vgpu-memory" }}
{{- else if eq $dialect "volcano" }}
{{- $own = "volcano.sh/vgpu-number volcano.sh/vgpu-cores volcano.sh/vgpu-memory volcano.sh/vgpu-memory-percentage" }}
{{- else if eq $dialect "hami" }}
{{- $own = "nvidia.com/gpu nvidia.com/gpucores nvidia.com/gpumem nvidia.com/gpumem-percentage nvidia.com/priority" }}
{{- end }}
{{- $names := list }}
{{- range splitList " " $own }}
{{- $names = append $names (index $root.Values.resourceNames . | default .) }}
{{- end }}
{{- join " " $names }}
{{- end }}

{{- /* Whether "container" of a CEL expression requests a part of a GPU. */ -}}
{{- define "sluice.requestsGpus" -}}
{{- $is := list }}
{{- range .Values.dialects }}
{{- if eq . "vgpu-rs" }}
{{- $is = append $is "name.startsWith('tensor-fusion.ai/index')" }}
{{- range $own, $other := $.Values.resourceNames }}
{{- if hasPrefix "tensor-fusion.ai/" $own }}
{{- $is = append $is (printf "name == '%s'" $other) }}
{{- end }}
{{- end }}
{{- else }}
{{- $is = append $is (printf "name in ['%s']" (include "sluice.resources" (list $ .) | replace " " "', '")) }}
{{- end }}
{{- end -}}
has(container.resources) && has(container.resources.limits)
&& container.resources.limits.exists(name, {{ join " || " $is }})
{{- end }}

{{- define "sluice.resourceNames" -}}
{{- $pairs := list }}
{{- range $own, $other := .Values.resourceNames }}
{{- $pairs = append $pairs (printf "%s=%s" $own $other) }}
{{- end }}
{{- join "," $pairs }}
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
