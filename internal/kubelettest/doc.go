// Package kubelettest runs, in a test process, the part of a kubelet that a device
// plugin uses. It accepts registrations on Dir/kubelet.sock, calls the plugin back,
// and follows its ListAndWatch. It admits pods the way the kubelet's device manager
// does, records allocations in kubelet_internal_checkpoint and serves the PodResources
// API. It is not a mock: it expects no calls and behaves like a real kubelet, down to
// the exact words of its refusals.
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
//	// a.CDIDevices is passed to the container runtime
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
// Restart acts like a kubelet that is killed and started again: all connections end,
// every socket in Dir is removed, the checkpoint is read, and kubelet.sock appears
// again. The socket exists a moment before it accepts; BeforeListen stretches that
// moment. Pods that were admitted before keep their devices.
// Resources that the checkpoint names have capacity 0 until their plugin is back.
//
// # What differs from a real kubelet
//
// Devices are chosen in order of their IDs; the kubelet chooses any. A pod's
// UID is derived from its namespace and name. Remove frees the devices of a pod
// at once; the kubelet does so when it next allocates. If a plugin registers again
// before its first stream has ended, kubelets from Kubernetes 1.26 on mistake the end
// of the first stream for the end of the second. KeepReplaced does the same, so that a
// test can show that a plugin avoids this.
package kubelettest
