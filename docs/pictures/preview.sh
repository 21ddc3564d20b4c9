#!/bin/sh
# Draws docs/pictures/preview.png: the page of `pleach preview -o html` for a small change.
# Needs git and chromium. PLEACH names the program, CHROMIUM the browser.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
pleach=${PLEACH:-$here/../../target/debug/pleach}
browser=${CHROMIUM:-chromium}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Commits have fixed authors and times, so that the page is the same each time.
export GIT_AUTHOR_NAME=ann GIT_AUTHOR_EMAIL=ann@example.org GIT_AUTHOR_DATE=2026-11-28T12:00:00Z
export GIT_COMMITTER_NAME=ann GIT_COMMITTER_EMAIL=ann@example.org GIT_COMMITTER_DATE=2026-11-28T12:00:00Z
repo=$work/fleet
mkdir -p "$repo/environments" "$repo/manifests/shop"
cd "$repo"
git init --quiet --initial-branch main
cat > pleach.yaml <<'YAML'
apiVersion: pleach.dev/v1alpha1
kind: Repository
id: fleet
YAML
cat > environments/production.yaml <<'YAML'
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - {name: shop, bundle: shop, namespace: shop}
YAML
cat > manifests/shop/bundle.yaml <<'YAML'
apiVersion: pleach.dev/v1alpha1
kind: Bundle
YAML
workload() { # name, image, replicas
  cat <<YAML
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $1}
spec:
  replicas: $3
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1}}
    spec:
      containers:
        - name: $1
          image: $2
          readinessProbe: {httpGet: {path: /ready, port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: $1}
spec:
  selector: {app: $1}
  ports: [{name: http, port: 80, targetPort: 8080}]
YAML
}
claim() { # name
  cat <<YAML
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}
YAML
}
settings() { # greeting, limit
  cat <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: "$1", itemsPerPage: "$2"}
YAML
}
{ settings Hello 20; workload cart shop/cart:1.4.0 3; workload search shop/search:2.1.0 2; claim uploads; } \
  > manifests/shop/shop.yaml
git add . && git commit --quiet --message "Shop as it is"
git switch --quiet --create change
{ settings "Good morning" 50; workload cart shop/cart:1.5.0 5; workload users shop/users:1.0.0 2; workload search shop/search:2.1.0 2; } \
  > manifests/shop/shop.yaml
git add . && git commit --quiet --message "cart 1.5: more items per page, and users"

"$pleach" --repo "$repo" preview --base main --head change -o html production > "$work/preview.html"
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --force-color-profile=srgb \
  --user-data-dir="$work/profile" --window-size=1280,900 --screenshot="$here/preview.png" \
  "file://$work/preview.html" 2> "$work/browser.log" || { cat "$work/browser.log" >&2; exit 1; }
