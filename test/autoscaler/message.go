package main

// message turns a struct with protobuf tags into a message; google.golang.org/protobuf derives its
// descriptor from the tags.
type message struct{}

// Reset does nothing: each message is decoded once, into a new one.
func (*message) Reset() {}

// String is for gRPC's logs, which do not need it.
func (*message) String() string { return "" }

// ProtoMessage marks it as a message.
func (*message) ProtoMessage() {}

// The messages of cloudprovider/externalgrpc/protos/externalgrpc.proto that a provider needs, with
// their field numbers. Fields left out are skipped on the wire. The generated package is of no use
// here: it uses Kubernetes' types as messages, which they no longer are in this module's version.
type (
	empty struct{ message }

	// groupID is any request with only a group.
	groupID struct {
		message
		ID string `protobuf:"bytes,1,opt,name=id,proto3"`
	}

	nodeGroup struct {
		message
		ID      string `protobuf:"bytes,1,opt,name=id,proto3"`
		MinSize int32  `protobuf:"varint,2,opt,name=minSize,proto3"`
		MaxSize int32  `protobuf:"varint,3,opt,name=maxSize,proto3"`
		Debug   string `protobuf:"bytes,4,opt,name=debug,proto3"`
	}
	nodeGroups struct {
		message
		NodeGroups []*nodeGroup `protobuf:"bytes,1,rep,name=nodeGroups,proto3"`
	}

	// externalNode is the autoscaler's description of a Node.
	externalNode struct {
		message
		ProviderID string `protobuf:"bytes,1,opt,name=providerID,proto3"`
		Name       string `protobuf:"bytes,2,opt,name=name,proto3"`
	}
	groupForNodeRequest struct {
		message
		Node *externalNode `protobuf:"bytes,1,opt,name=node,proto3"`
	}
	groupForNode struct {
		message
		NodeGroup *nodeGroup `protobuf:"bytes,1,opt,name=nodeGroup,proto3"`
	}

	gpuLabel struct {
		message
		Label string `protobuf:"bytes,1,opt,name=label,proto3"`
	}
	targetSize struct {
		message
		TargetSize int32 `protobuf:"varint,1,opt,name=targetSize,proto3"`
	}

	// sizeRequest increases or decreases the size of a group.
	sizeRequest struct {
		message
		Delta int32  `protobuf:"varint,1,opt,name=delta,proto3"`
		ID    string `protobuf:"bytes,2,opt,name=id,proto3"`
	}
	deleteRequest struct {
		message
		Nodes []*externalNode `protobuf:"bytes,1,rep,name=nodes,proto3"`
		ID    string          `protobuf:"bytes,2,opt,name=id,proto3"`
	}

	instanceError struct {
		message
		Code    string `protobuf:"bytes,1,opt,name=errorCode,proto3"`
		Message string `protobuf:"bytes,2,opt,name=errorMessage,proto3"`
		Class   int32  `protobuf:"varint,3,opt,name=instanceErrorClass,proto3"`
	}
	instanceStatus struct {
		message
		State int32          `protobuf:"varint,1,opt,name=instanceState,proto3"`
		Error *instanceError `protobuf:"bytes,2,opt,name=errorInfo,proto3"`
	}
	instance struct {
		message
		ID     string          `protobuf:"bytes,1,opt,name=id,proto3"`
		Status *instanceStatus `protobuf:"bytes,2,opt,name=status,proto3"`
	}
	instances struct {
		message
		Instances []*instance `protobuf:"bytes,1,rep,name=instances,proto3"`
	}

	// template holds a Node in its protobuf encoding, which equals a bytes field on the wire.
	template struct {
		message
		Node []byte `protobuf:"bytes,1,opt,name=nodeInfo,proto3"`
	}
)
