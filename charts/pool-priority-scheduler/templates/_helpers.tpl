{{/* What the names of all objects begin with: the release's name if that has pool-priority in it, or else both. A release called
pool-priority, or pool-priority-scheduler, thus has the names that kustomize gives. */}}
{{- define "pool-priority-scheduler.fullname" -}}
{{- $name := .Values.nameOverride | default "pool-priority" }}
{{- $release := .Release.Name | trimSuffix "-scheduler" }}
{{- .Values.fullnameOverride | default (contains $name $release | ternary $release (printf "%s-%s" $release $name)) | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The labels of an object: those that Helm's charts have, and yours. */}}
{{- define "pool-priority-scheduler.labels" -}}
{{- $labels := dict "app.kubernetes.io/name" .name "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/part-of" "pool-priority"
  "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63) }}
{{- toYaml (merge $labels (.labels | default dict) (.root.Values.commonLabels | default dict)) }}
{{- end }}

{{/* The labels of a pod: none that change from version to version. */}}
{{- define "pool-priority-scheduler.podLabels" -}}
{{- $labels := dict "app.kubernetes.io/name" .name "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/part-of" "pool-priority" }}
{{- toYaml (merge $labels ((.component).podLabels | default dict) (.root.Values.commonLabels | default dict)) }}
{{- end }}

{{/* The metadata of the object called name, with further labels and annotations; with cluster it is in no namespace. */}}
{{- define "pool-priority-scheduler.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels: {{- include "pool-priority-scheduler.labels" . | nindent 2 }}
{{- with merge dict (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The digest of the image of each build, by minor version of Kubernetes; "" in the source tree. The file has a line
for each build, the oldest first. A release adds the digests there and not to the values, which helm upgrade
--reuse-values would keep. */}}
{{- define "pool-priority-scheduler.builds" -}}
{{- $builds := dict }}
{{- range .Files.Get "files/released" | trim | splitList "\n" }}
{{- $fields := splitList " " . }}
{{- $_ := set $builds (first $fields) (rest $fields | join "") }}
{{- end }}
{{- toYaml $builds }}
{{- end }}

{{/* The minor version of the build: the value, or the newest that is not newer than the cluster's. scheduler-plugins are
in the build for 1.35 only. A kube-scheduler may be at most one minor version older than the API server. The build for
1.35 does not see which pods belong to PodGroups, so that it might split a gang. */}}
{{- define "pool-priority-scheduler.minor" -}}
{{- $builds := include "pool-priority-scheduler.builds" . | fromYaml | keys | sortAlpha }}
{{- $plugins := include "pool-priority-scheduler.outOfTree" . | trim }}
{{- $cluster := printf "%s.%s" .Capabilities.KubeVersion.Major (.Capabilities.KubeVersion.Minor | trimSuffix "+") }}
{{- if and $plugins (semverCompare ">1.36" $cluster) }}
{{- fail (printf "config: %s is only in the build for Kubernetes 1.35, which runs with clusters up to 1.36, and this cluster is %s: remove it from the profile" $plugins $cluster) }}
{{- end }}
{{- if $plugins }}{{- $builds = list "1.35" }}{{- end }}
{{- $minor := .Values.kubernetesMinor | default "" }}
{{- if and $minor (not (has $minor $builds)) }}
{{- fail (printf "kubernetesMinor: there is no build for Kubernetes %s%s: set it to one of %s, or leave it out" $minor (empty $plugins | ternary "" (printf " with %s" $plugins)) (join ", " $builds)) }}
{{- end }}
{{- if and $minor (semverCompare (printf "<%s" $minor) $cluster) }}
{{- fail (printf "kubernetesMinor: the build for Kubernetes %s does not start in a cluster of %s: leave it out, or set an older one" $minor $cluster) }}
{{- end }}
{{- if and $minor (or .Values.image.tag .Values.image.digest) }}
{{- fail "kubernetesMinor: it selects the default image, and image.tag or image.digest names another: set one of them" }}
{{- end }}
{{- range $builds }}{{- if and (not $.Values.kubernetesMinor) (semverCompare (printf ">=%s" .) $cluster) }}{{- $minor = . }}{{- end }}{{- end }}
{{- $pools := (include "pool-priority-scheduler.config" . | fromYaml | include "pool-priority-scheduler.args" | fromYaml).pools }}
{{- range .Capabilities.APIVersions }}{{- if and (eq $minor "1.35") (hasPrefix "scheduling.k8s.io/" .) (hasSuffix "/PodGroup" .) }}
{{- range $pools }}{{- if hasKey . "burst" }}
{{- fail (printf "args.pools: the cluster serves PodGroups, and the build for Kubernetes 1.35 might split a gang between VMs and the burst pool %s: leave out kubernetesMinor and the plugins of scheduler-plugins, or remove the burst pool" .name) }}
{{- end }}{{- end }}
{{- end }}{{- end }}
{{- $minor }}
{{- end }}

{{/* The plugin of scheduler-plugins that a profile has, or "". */}}
{{- define "pool-priority-scheduler.outOfTree" -}}
{{- $found := "" }}
{{- range (include "pool-priority-scheduler.config" . | fromYaml).profiles }}
{{- range .pluginConfig }}{{- if has .name (list "Coscheduling" "NodeResourcesAllocatable") }}{{- $found = .name }}{{- end }}{{- end }}
{{- range .plugins }}{{- range .enabled }}{{- if has .name (list "Coscheduling" "NodeResourcesAllocatable") }}{{- $found = .name }}{{- end }}{{- end }}{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{/* Whether a profile has Coscheduling. */}}
{{- define "pool-priority-scheduler.coscheduling" -}}
{{- if eq (include "pool-priority-scheduler.outOfTree" .) "Coscheduling" }}true{{- end }}
{{- end }}

{{- define "pool-priority-scheduler.image" -}}
{{- $image := .Values.image }}
{{- if not (regexMatch "^(localhost|[A-Za-z0-9-]+[.:][^/]+)/[^/]" $image.repository) }}
{{- fail (printf "image.repository: it is %q, without a registry: set it to the image in your registry, such as registry.example.com/pool-priority-scheduler" $image.repository) }}
{{- end }}
{{- $minor := include "pool-priority-scheduler.minor" . }}
{{- $digest := $image.digest | default (empty $image.tag | ternary (get (include "pool-priority-scheduler.builds" . | fromYaml) $minor) "") }}
{{- $tag := $image.tag | default (empty $digest | ternary (printf "%s-kubernetes%s" .Chart.AppVersion $minor) "") }}
{{- $image.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The name of the ServiceAccount of the scheduler or the controller. */}}
{{- define "pool-priority-scheduler.serviceAccountName" -}}
{{- $default := printf "%s-%s" (include "pool-priority-scheduler.fullname" .root) .name }}
{{- ((index .root.Values .name).serviceAccount).name | default $default }}
{{- end }}

{{/* Whether something is switched on that is unless it is switched off. */}}
{{- define "pool-priority-scheduler.on" -}}
{{- if ne (toString .) "false" }}true{{ end }}
{{- end }}

{{/* The files that kustomize uses too, with the release's namespace, names, ServiceAccounts, labels and annotations. */}}
{{- define "pool-priority-scheduler.file" -}}
{{- $root := .root }}
{{- $fullname := include "pool-priority-scheduler.fullname" .root }}
{{- $text := .root.Files.Get (printf "files/%s.yaml" .name) }}
{{- $text = $text | replace "pool-priority-system" "@NAMESPACE@" }}
{{- $text = $text | replace "resourceNames: [pool-priority-scheduler]" "resourceNames: [@LEASE@]" }}
{{- $text = $text | replace "name=\"pool-priority-scheduler\"" "name=\"@LEASE@\"" }}
{{- $text = $text | replace "resourceNames: [pool-priority-status]" "resourceNames: [@STATUS@]" }}
{{- $text = $text | replace "resourceNames: [pool-priority-override]" "resourceNames: [@OVERRIDE@]" }}
{{- $text = $text | replace "resourceNames: [cluster-autoscaler-status]" "resourceNames: [@AUTOSCALER@]" }}
{{- $text = $text | replace "resourceNames: [karpenter-leader-election]" "resourceNames: [@KARPENTER@]" }}
{{- $text = $text | replace "values: [pool-priority-scheduler]" "values: [@SCHEDULER@]" }}
{{- $text = $text | replace "'pool-priority'" "'@PARTOF@'" }}
{{- $text = $text | replace "pool-priority" $fullname }}
{{- range $key, $value := include "pool-priority-scheduler.objects" .root | fromYaml }}
{{- $text = $text | replace (printf "@%s@" $key) $value }}
{{- end }}
{{- $accounts := dict }}
{{- $created := dict }}
{{- range tuple "scheduler" "controller" }}
{{- $name := printf "%s-%s" $fullname . }}
{{- $_ := set $accounts $name (include "pool-priority-scheduler.serviceAccountName" (dict "root" $root "name" .)) }}
{{- $_ := set $created $name (index $root.Values .).serviceAccount }}
{{- end }}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := fromYaml $document }}
{{- $annotations := merge dict ($object.metadata.annotations | default dict) }}
{{- $settings := dict }}
{{- if eq $object.kind "ServiceAccount" }}
{{- $settings = index $created $object.metadata.name | default dict }}
{{- $_ := set $object.metadata "name" (index $accounts $object.metadata.name) }}
{{- end }}
{{- $annotations = merge $annotations ($settings.annotations | default dict) ($root.Values.commonAnnotations | default dict) }}
{{- if include "pool-priority-scheduler.on" $settings.create }}
{{- $_ := set $object.metadata "labels" (include "pool-priority-scheduler.labels" (dict "root" $root "name" "pool-priority-scheduler" "labels" $object.metadata.labels) | fromYaml) }}
{{- with $annotations }}{{- $_ := set $object.metadata "annotations" . }}{{- end }}
{{- range $subject := $object.subjects }}{{- with index $accounts .name }}{{- $_ := set $subject "name" . }}{{- end }}{{- end }}
{{- if eq $object.kind "FlowSchema" }}{{- range $object.spec.rules }}{{- range .subjects }}
{{- $_ := set .serviceAccount "name" (index $accounts .serviceAccount.name) }}
{{- end }}{{- end }}{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end }}

{{/* What the configuration names and the scheduler needs rights for. */}}
{{- define "pool-priority-scheduler.objects" -}}
{{- $config := include "pool-priority-scheduler.config" . | fromYaml }}
{{- $lease := $config.leaderElection | default dict }}
{{- if ne ($lease.resourceNamespace | default .Release.Namespace) .Release.Namespace }}
{{- fail (printf "config: leaderElection.resourceNamespace must be the release's namespace %s, or be left out; it is %s" .Release.Namespace $lease.resourceNamespace) }}
{{- end }}
{{- if and (eq (toString $lease.leaderElect) "false") (gt (int .Values.scheduler.replicas) 1) }}
{{- fail "config: leaderElection.leaderElect is false, and scheduler.replicas is more than 1: the replicas would undo each other's work" }}
{{- end }}
{{- $args := include "pool-priority-scheduler.args" $config | fromYaml }}
{{- $scaleIn := $args.scaleIn | default dict }}
{{- if or (hasKey $scaleIn "podDeletionCost") (hasKey $scaleIn "others") }}
{{- fail "scaleIn: instead of podDeletionCost: false, write deletionCosts: None, and instead of others: true, deletionCosts: All" }}
{{- end }}
{{- range $args.pools }}{{- if hasKey (.burst | default dict) "maxPods" }}
{{- fail "burst: instead of maxPods: N, write limits: {pods: N}" }}
{{- end }}{{- end }}
{{- $status := $args.statusConfigMap | default (printf "%s/pool-priority-status" .Release.Namespace) }}
{{- if ne (dir $status) .Release.Namespace }}
{{- fail (printf "statusConfigMap must be in the release's namespace %s, for which the scheduler has rights; it is %s" .Release.Namespace $status) }}
{{- end -}}
NAMESPACE: {{ .Release.Namespace }}
PARTOF: pool-priority
SCHEDULER: {{ include "pool-priority-scheduler.schedulerName" . | quote }}
LEASE: {{ $lease.resourceName | default "pool-priority-scheduler" }}
STATUS: {{ base $status }}
OVERRIDE: pool-priority-override
AUTOSCALER: {{ dig "capacity" "clusterAutoscalerStatus" "kube-system/cluster-autoscaler-status" $args | base }}
KARPENTER: {{ dig "capacity" "karpenterLease" "kube-system/karpenter-leader-election" $args | base }}
{{- end }}

{{/* Whether the configuration has tenants: the policy goes with it. */}}
{{- define "pool-priority-scheduler.tenants" -}}
{{- $args := include "pool-priority-scheduler.config" . | fromYaml | include "pool-priority-scheduler.args" | fromYaml }}
{{- if and .Values.tenants (not $args.tenants) }}
{{- fail "tenants: the value config is used, and the plugin's args in it have no tenants: true: add it there, too" }}
{{- end }}
{{- if $args.tenants }}true{{ end }}
{{- end }}

{{/* The plugin's arguments in a configuration. */}}
{{- define "pool-priority-scheduler.args" -}}
{{- range .profiles }}{{- range .pluginConfig }}{{- if eq .name "PoolPriority" }}
{{- toYaml .args }}
{{- end }}{{- end }}{{- end }}
{{- end }}

{{/* The name of the profile that configures the plugin. */}}
{{- define "pool-priority-scheduler.schedulerName" -}}
{{- range (include "pool-priority-scheduler.config" . | fromYaml).profiles }}
{{- $name := .schedulerName | default "pool-priority-scheduler" }}
{{- range .pluginConfig }}{{- if eq .name "PoolPriority" }}{{ $name }}{{- end }}{{- end }}
{{- end }}
{{- end }}

{{- define "pool-priority-scheduler.config" -}}
{{- if .Values.config -}}
{{ .Values.config }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  resourceName: {{ include "pool-priority-scheduler.fullname" . }}-scheduler
{{- with .Values.clientConnection }}
clientConnection: {{ toJson . }}
{{- end }}
profiles:
- schedulerName: {{ .Values.schedulerName }}
  pluginConfig:
  - name: PoolPriority
    args:
      {{- $args := deepCopy .Values.args }}
      {{- if .Values.tenants }}{{- $_ := set $args "tenants" true }}{{- end }}
      {{- $name := include "pool-priority-scheduler.fullname" . }}
      {{- if and (ne $name "pool-priority") (not $args.statusConfigMap) }}
      {{- $_ := set $args "statusConfigMap" (printf "%s/%s-status" .Release.Namespace $name) }}
      {{- end }}
      {{- toYaml $args | nindent 6 }}
{{- end }}
{{- end }}

{{/* The annotations of the pods: the configuration travels with their template. */}}
{{- define "pool-priority-scheduler.podAnnotations" -}}
{{ merge (dict "poolpriority.dev/config" (printf "%s\n" (include "pool-priority-scheduler.config" .root | trimSuffix "\n"))) (.component.podAnnotations | default dict) | toYaml }}
{{- end }}

{{/* What the pods of all have in common. */}}
{{- define "pool-priority-scheduler.podSpec" -}}
automountServiceAccountToken: true
enableServiceLinks: false
priorityClassName: {{ .Values.priorityClassName | default "system-cluster-critical" }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What the pods of both Deployments have besides. */}}
{{- define "pool-priority-scheduler.deploymentPodSpec" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
volumes:
- name: config
  downwardAPI:
    items:
    - {path: config.yaml, fieldRef: {fieldPath: "metadata.annotations['poolpriority.dev/config']"}}
{{- end }}

{{/* What all containers have in common. */}}
{{- define "pool-priority-scheduler.container" -}}
image: {{ include "pool-priority-scheduler.image" .root }}
{{- if ne .root.Values.image.pullPolicy "IfNotPresent" }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
resources: {{- toYaml .resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "pool-priority-scheduler.deploymentContainer" -}}
env:
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
volumeMounts:
- {name: config, mountPath: /etc/pool-priority-scheduler, readOnly: true}
{{- end }}
