{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The files that kustomize uses too, for the release's namespace. */}}
{{- define "file" -}}
{{ .root.Files.Get (printf "files/%s.yaml" .name) | replace "pool-priority-system" .root.Release.Namespace }}
{{- end }}

{{- define "config" -}}
{{- if .Values.config -}}
{{ .Values.config }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: pool-priority-scheduler
  resourceNamespace: {{ .Release.Namespace }}
  leaseDuration: 10s
  renewDeadline: 7s
  retryPeriod: 500ms
profiles:
- schedulerName: {{ .Values.schedulerName }}
  plugins:
    multiPoint: {enabled: [{name: PoolPriority}]}
    filter: {enabled: [{name: PoolPriority}], disabled: [{name: TaintToleration}]}
    postFilter: {enabled: [{name: PoolPriority}]}
    bind: {disabled: [{name: DefaultBinder}]}
  pluginConfig:
  - name: PoolPriority
    args:
      {{- $args := deepCopy .Values.args }}
      {{- if and (ne .Release.Namespace "pool-priority-system") (not $args.statusConfigMap) }}
      {{- $_ := set $args "statusConfigMap" (printf "%s/pool-priority-status" .Release.Namespace) }}
      {{- end }}
      {{- toYaml $args | nindent 6 }}
{{- end }}
{{- end }}

{{/* The annotations of the pods: the configuration travels with their template. */}}
{{- define "podAnnotations" -}}
{{ dict "poolpriority.dev/config" (printf "%s\n" (include "config" . | trimSuffix "\n")) | toYaml }}
{{- end }}

{{/* What the pods of both have in common. */}}
{{- define "podSpec" }}
serviceAccountName: {{ .name }}
priorityClassName: system-cluster-critical
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  seccompProfile: {type: RuntimeDefault}
volumes:
- name: config
  downwardAPI:
    items:
    - {path: config.yaml, fieldRef: {fieldPath: "metadata.annotations['poolpriority.dev/config']"}}
{{- end }}

{{- define "container" }}
image: {{ include "image" .root }}
{{- if ne .root.Values.image.pullPolicy "IfNotPresent" }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
resources: {{ toYaml .component.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
- {name: config, mountPath: /etc/pool-priority-scheduler, readOnly: true}
{{- end }}
