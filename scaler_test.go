package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler/pool/keda/externalscaler"
)

func TestServeTellsKEDAHowManyEndpointsAPoolShouldHave(t *testing.T) {
	t.Parallel()
	catalogue := strings.ReplaceAll(testCatalogue, "ENGINE", startEngine(t))
	in := installWith(t, strings.Replace(catalogue, "    endpoints:", "    scaling: {min: 2, max: 3}\n    endpoints:", 1))
	address := freeAddress(t)
	in.serve(t, "WEIR_SCALER_ADDR="+address)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := externalscaler.NewExternalScalerClient(conn)
	eventually(t, 10*time.Second, func() string {
		r, err := client.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: &externalscaler.ScaledObjectRef{
			ScalerMetadata: map[string]string{"pool": "sim"},
		}})
		if err != nil {
			return err.Error()
		}
		if v := r.GetMetricValues(); len(v) != 1 || v[0].GetMetricValueFloat() != 2 {
			return r.String()
		}
		return ""
	})
}
