{{- define "pool-priority-scheduler.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the names of all objects begin with: the release's name if that has pool-priority in it, or else both. A release called
pool-priority, or pool-priority-scheduler, thus has the names that kustomize gives. */}}
{{- define "pool-priority-scheduler.fullname" -}}
{{- $name := .Values.nameOverride | default "pool-priority" }}
{{- $release := .Release.Name | trimSuffix "-scheduler" }}
{{- .Values.fullnameOverride | default (contains $name $release | ternary $release (printf "%s-%s" $release $name)) | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The files that kustomize uses too, with the release's namespace and names. */}}
{{- define "pool-priority-scheduler.file" -}}
{{- $text := .root.Files.Get (printf "files/%s.yaml" .name) }}
{{- $text = $text | replace "pool-priority-system" "@NAMESPACE@" }}
{{- $text = $text | replace "resourceNames: [pool-priority-scheduler]" "resourceNames: [@LEASE@]" }}
{{- $text = $text | replace "resourceNames: [pool-priority-status]" "resourceNames: [@STATUS@]" }}
{{- $text = $text | replace "resourceNames: [cluster-autoscaler-status]" "resourceNames: [@AUTOSCALER@]" }}
{{- $text = $text | replace "pool-priority" (include "pool-priority-scheduler.fullname" .root) }}
{{- range $key, $value := include "pool-priority-scheduler.objects" .root | fromYaml }}
{{- $text = $text | replace (printf "@%s@" $key) $value }}
{{- end }}
{{- $text }}
{{- end }}

{{/* What the configuration names and the scheduler needs rights for. */}}
{{- define "pool-priority-scheduler.objects" -}}
{{- $config := include "pool-priority-scheduler.config" . | fromYaml }}
{{- $lease := $config.leaderElection | default dict }}
{{- if ne ($lease.resourceNamespace | default .Release.Namespace) .Release.Namespace }}
{{- fail (printf "config: leaderElection.resourceNamespace must be the release's namespace %s, or be left out; it is %s" .Release.Namespace $lease.resourceNamespace) }}
{{- end }}
{{- $args := include "pool-priority-scheduler.args" $config | fromYaml }}
{{- $status := $args.statusConfigMap | default (printf "%s/pool-priority-status" .Release.Namespace) }}
{{- if ne (dir $status) .Release.Namespace }}
{{- fail (printf "statusConfigMap must be in the release's namespace %s, for which the scheduler has rights; it is %s" .Release.Namespace $status) }}
{{- end -}}
NAMESPACE: {{ .Release.Namespace }}
LEASE: {{ $lease.resourceName | default "pool-priority-scheduler" }}
STATUS: {{ base $status }}
AUTOSCALER: {{ dig "capacity" "clusterAutoscalerStatus" "kube-system/cluster-autoscaler-status" $args | base }}
{{- end }}

{{/* The plugin's arguments in a configuration. */}}
{{- define "pool-priority-scheduler.args" -}}
{{- range .profiles }}{{- range .pluginConfig }}{{- if eq .name "PoolPriority" }}
{{- toYaml .args }}
{{- end }}{{- end }}{{- end }}
{{- end }}

{{- define "pool-priority-scheduler.config" -}}
{{- if .Values.config -}}
{{ .Values.config }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ include "pool-priority-scheduler.fullname" . }}-scheduler
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
      {{- $name := include "pool-priority-scheduler.fullname" . }}
      {{- if and (ne $name "pool-priority") (not $args.statusConfigMap) }}
      {{- $_ := set $args "statusConfigMap" (printf "%s/%s-status" .Release.Namespace $name) }}
      {{- end }}
      {{- toYaml $args | nindent 6 }}
{{- end }}
{{- end }}

{{/* The annotations of the pods: the configuration travels with their template. */}}
{{- define "pool-priority-scheduler.podAnnotations" -}}
{{ dict "poolpriority.dev/config" (printf "%s\n" (include "pool-priority-scheduler.config" . | trimSuffix "\n")) | toYaml }}
{{- end }}

{{/* What the pods of both have in common. */}}
{{- define "pool-priority-scheduler.podSpec" }}
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

{{- define "pool-priority-scheduler.container" }}
image: {{ include "pool-priority-scheduler.image" .root }}
{{- if ne .root.Values.image.pullPolicy "IfNotPresent" }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
resources: {{ toYaml .component.resources | nindent 2 }}
env:
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
- {name: config, mountPath: /etc/pool-priority-scheduler, readOnly: true}
{{- end }}
