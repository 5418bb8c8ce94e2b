package gatekeeper

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"poolpriority.dev/scheduler/test/must"
)

func TestAzureFiles(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	v := newVolumes(factory)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	claim := func(name, volume, class string) *v1.PersistentVolumeClaim {
		c := &v1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume}}
		if class != "" {
			c.Spec.StorageClassName = &class
		}
		return c
	}
	volume := func(name string, source v1.PersistentVolumeSource) *v1.PersistentVolume {
		return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	}
	for _, c := range []*v1.PersistentVolumeClaim{
		claim("files", "files", ""), claim("in-tree", "in-tree", ""), claim("disk", "disk", "files"), claim("lost", "lost", "files"),
		claim("unbound-files", "", "files"), claim("unbound-disk", "", "disk"), claim("unbound-default", "", ""), claim("unbound-unknown", "", "unknown"),
	} {
		must.NoError(t, factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer().Add(c))
	}
	for _, p := range []*v1.PersistentVolume{
		volume("files", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "file.csi.azure.com"}}),
		volume("in-tree", v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{}}),
		volume("disk", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "disk.csi.azure.com"}}),
	} {
		must.NoError(t, factory.Core().V1().PersistentVolumes().Informer().GetIndexer().Add(p))
	}
	for name, provisioner := range map[string]string{"files": "file.csi.azure.com", "disk": "disk.csi.azure.com"} {
		must.NoError(t, factory.Storage().V1().StorageClasses().Informer().GetIndexer().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}))
	}
	claims := func(names ...string) *v1.Pod {
		p := pod("p")
		for _, name := range names {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		}
		return p
	}
	ephemeral := func(class string) *v1.Pod {
		p := pod("p")
		p.Spec.Volumes = []v1.Volume{{Name: "e", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class}}}}}}
		return p
	}
	empty := pod("p")
	empty.Spec.Volumes = []v1.Volume{{Name: "x", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	for _, tc := range []struct {
		name string
		pod  *v1.Pod
		want bool
	}{
		{"no volume", claims(), false},
		{"an emptyDir", empty, false},
		{"Azure Files", claims("files"), true},
		{"Azure Files of the in-tree driver", claims("in-tree"), true},
		{"a disk, whatever its claim's class", claims("disk"), false},
		{"Azure Files and a disk", claims("files", "disk"), false},
		{"a volume that is gone", claims("lost"), false},
		{"a claim that does not exist", claims("none"), false},
		{"not bound yet, of a class of Azure Files", claims("unbound-files"), true},
		{"not bound yet, of another class", claims("unbound-disk"), false},
		{"not bound yet, of no class", claims("unbound-default"), false},
		{"not bound yet, of a class that does not exist", claims("unbound-unknown"), false},
		{"an ephemeral volume of Azure Files", ephemeral("files"), true},
		{"an ephemeral disk", ephemeral("disk"), false},
	} {
		if got := v.AzureFiles(tc.pod); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
