// Command crictl replaces the crictl of cri-tools, which is not available as a Go module, in node images for kind. It
// has the three commands that kind runs on nodes: "inspecti IMAGE", "images" and "ps -a".
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const endpoint = "unix:///run/containerd/containerd.sock"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	switch {
	case len(args) == 2 && args[0] == "inspecti":
		return inspect(ctx, cri.NewImageServiceClient(conn), args[1])
	case len(args) == 1 && args[0] == "images":
		return images(ctx, cri.NewImageServiceClient(conn))
	case len(args) >= 1 && args[0] == "ps":
		return containers(ctx, cri.NewRuntimeServiceClient(conn))
	}
	return fmt.Errorf("usage: crictl inspecti IMAGE | images | ps -a")
}

func inspect(ctx context.Context, client cri.ImageServiceClient, image string) error {
	answer, err := client.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
	if err != nil {
		return err
	}
	if answer.Image == nil {
		return fmt.Errorf("no such image %q present", image)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"status": map[string]any{
		"id": answer.Image.Id, "repoTags": answer.Image.RepoTags, "repoDigests": answer.Image.RepoDigests,
	}})
}

func images(ctx context.Context, client cri.ImageServiceClient) error {
	answer, err := client.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "IMAGE ID\tSIZE\tTAGS")
	for _, image := range answer.Images {
		fmt.Fprintf(w, "%s\t%d\t%v\n", image.Id, image.Size, image.RepoTags)
	}
	return w.Flush()
}

func containers(ctx context.Context, client cri.RuntimeServiceClient) error {
	answer, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "CONTAINER ID\tSTATE\tNAME\tATTEMPT\tPOD")
	for _, c := range answer.Containers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", c.Id, c.State, c.Metadata.Name, c.Metadata.Attempt, c.Labels["io.kubernetes.pod.name"])
	}
	return w.Flush()
}
