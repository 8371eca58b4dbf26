#!/usr/bin/env bash
# Made the files beside it, which are valid for a hundred years and vouch for nothing but tests.
# authority.pem vouches for server, other and client; locked.key is server.key with the password "secret".
set -euo pipefail
cd "$(dirname "$0")"
days=36500
new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

new_key authority.key
openssl req -x509 -new -key authority.key -days $days -subj '/CN=Hotfire tests' -out authority.pem
for name in server other client; do
  new_key $name.key
  openssl req -new -key $name.key -subj "/CN=$name" |
    openssl x509 -req -CA authority.pem -CAkey authority.key -CAcreateserial -days $days -out $name.pem \
      -extfile <(echo 'subjectAltName=DNS:localhost,IP:127.0.0.1')
done
openssl pkcs8 -topk8 -v2 aes256 -in server.key -passout pass:secret -out locked.key
rm -f authority.key authority.srl
