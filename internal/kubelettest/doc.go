// Package kubelettest is a kubelet in your test process, as far as a device
// plugin can see: it takes registrations on Dir/kubelet.sock, calls the plugin
// back, follows its ListAndWatch, admits pods the way the kubelet's device
// manager does, remembers what it gave away in kubelet_internal_checkpoint and
// answers the PodResources API. It is no mock: no call is expected, and it
// keeps to what a real kubelet does, its refusals word for word included.
//
//	k, err := kubelettest.Start(kubelettest.Config{Dir: t.TempDir()})
//	defer k.Stop()
//	// start the plugin with k.Socket()
//	r, err := k.Wait(ctx, "nvidia.com/gpu", func(r kubelettest.Resource) bool {
//		return r.Allocatable == 8
//	})
//	a, err := k.Admit(ctx, kubelettest.Pod{
//		Namespace: "default", Name: "job", Container: "main",
//		Requests: map[string]int{"nvidia.com/gpu": 2},
//	})
//	// a.CDIDevices is what the container runtime would be given
//
// # What happens when
//
// Register checks version and resource name, dials the plugin's endpoint,
// which must lie in Dir, asks for its options and only then answers; the plugin
// must therefore serve before it registers. A plugin that registers a resource
// again replaces itself.
//
// When a ListAndWatch stream ends, Allocatable is 0 at once and every device
// counts as unhealthy, while Capacity stays for five minutes (GracePeriod) and
// the resource goes away with the first UpdateNodeStatus after that. The clock
// is Config.Now.
//
// Restart is what a plugin sees when the kubelet is killed and comes back: all
// connections end, every socket in Dir is removed, the checkpoint is read, and
// kubelet.sock appears again (it exists a moment before it accepts; BeforeListen
// stretches that moment). Pods that were admitted before keep their devices.
// Resources that the checkpoint names have capacity 0 until their plugin is back.
//
// # What differs from a real kubelet
//
// Devices are chosen in order of their IDs where the kubelet takes any. A pod's
// UID is derived from its namespace and name. Remove frees the devices of a pod
// at once; the kubelet does so when it next allocates. From Kubernetes 1.26 on a
// kubelet whose plugin registers a second time before the first stream has ended
// takes the end of the first for the end of the second: KeepReplaced does the
// same, so that a test can show that a plugin never gets there.
package kubelettest
