package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"weir/bench/proc"
)

// startNginx adds nginx as a plain proxy, where it is installed: what the best
// tool without any of a gateway's features costs.
func (b *bench) startNginx(ctx context.Context) error {
	program, err := exec.LookPath("nginx")
	if err != nil {
		b.say("nginx is not installed: left out")
		return nil //nolint:nilerr // it is optional
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "nginx")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off;
worker_processes 2;
pid %[1]s/pid;
error_log %[1]s/error.log;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_requests 1000000;
  upstream mock { server %[2]s; keepalive 64; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:%[3]d;
    location / {
      proxy_pass http://mock;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
    }
  }
}
`, dir, b.mockAddr, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	c, err := startChild(b.dir, "nginx", nil, program, "-c", conf, "-p", dir, "-e", filepath.Join(dir, "start.log"))
	if err != nil {
		return err
	}
	b.children = append(b.children, c)
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	if err := c.ready(ctx, answers(url+"/health")); err != nil {
		return err
	}
	b.targets = append(b.targets, &target{name: "nginx", url: url, parts: []proc.Part{{Name: "nginx", PID: c.pid()}}})
	return nil
}
