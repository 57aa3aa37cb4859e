package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weir/tenants"
)

// realInstaller is found beside the program's source; it prints the paths of
// the server and of the weights.
const realInstaller = "deploy/realmodel/install.sh"

// realModel installs a small model that runs on the CPU, starts its server and
// puts it into the catalogue as real-chat.
func (p *playground) realModel(ctx context.Context, e *devEngines) error {
	if _, err := os.Stat(realInstaller); err != nil {
		return fmt.Errorf("--real-model needs %s: run it in weir's source folder (make run MODEL=real)", realInstaller)
	}
	server, weights, err := p.installReal(ctx)
	if err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	url := "http://127.0.0.1:" + port
	log, err := os.Create(p.state.path("realmodel.log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(server, realArguments(weights, port)...) //nolint:gosec,noctx // our own install; it is ended below
	cmd.Stdout, cmd.Stderr = log, log
	child, err := startChild(cmd)
	if err != nil {
		return errors.Join(fmt.Errorf("start the real model's server: %w", err), log.Close())
	}
	p.later(func() { child.stop(); _ = log.Close() })
	p.say("loading the real model (log: %s)", log.Name())
	for probeHealth(ctx, url) != nil {
		select {
		case <-child.done:
			return fmt.Errorf("the real model's server ended at once: see %s", log.Name())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	e.pools = append(e.pools, devPool{
		"real", tenants.IsolationSingleTenant,
		fmt.Sprintf("  - {id: real-1, url: %q, engine: llamacpp, accelerator: CPU, max_concurrency: 4}\n", url),
	})
	e.add("real", "real-chat", "chat, completions")
	e.prices = append(e.prices, `- {model: real-chat, input: "0.10", cached_input: "0.02", output: "0.40"}`)
	return nil
}

func (p *playground) installReal(ctx context.Context) (server, weights string, err error) {
	p.say("installing a real model (only the first time takes long)")
	//nolint:gosec // a script of ours
	cmd := exec.CommandContext(ctx, "bash", realInstaller, filepath.Join(".cache", "realmodel"))
	cmd.Stderr = p.out // its progress
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", realInstaller, err)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "server="); ok {
			server = v
		}
		if v, ok := strings.CutPrefix(lines.Text(), "model="); ok {
			weights = v
		}
	}
	if server == "" || weights == "" {
		return "", "", fmt.Errorf("%s named no server and model", realInstaller)
	}
	return server, weights, nil
}

// realArguments are explained in docs/real-model.md.
func realArguments(weights, port string) []string {
	return []string{
		"--model", weights, "--alias", "real-chat", "--host", "127.0.0.1", "--port", port,
		"--ctx-size", "8192", "--kv-unified", "--parallel", "4", "--threads", "2", "--poll", "0",
		"--metrics", "--offline", "--no-ui",
	}
}

func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
