package kubelet

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxPodResources bounds the kubelet's response: 1,000 pods and 10,000 devices need 2 MiB.
const maxPodResources = 16 << 20

// DialPodResources returns a client of the kubelet's PodResources API, version 1, on a socket, and
// its connection, which the caller closes. It returns fs.ErrNotExist, wrapped, if there is no
// socket. It does not connect: the first call fails if nobody listens.
func DialPodResources(socket string) (podresources.PodResourcesListerClient, io.Closer, error) {
	if info, err := os.Stat(socket); err != nil {
		return nil, nil, err
	} else if info.Mode().Type() != fs.ModeSocket {
		return nil, nil, fmt.Errorf("%s is not a socket", socket)
	}
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)))
	if err != nil {
		return nil, nil, err
	}
	return podresources.NewPodResourcesListerClient(conn), conn, nil
}
