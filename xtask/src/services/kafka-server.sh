#!/bin/sh
# One node of Apache Kafka for tests, broker and controller in one: kafka-server DIRECTORY PORT CONTROLLER_PORT
#
# The directory holds everything that it writes. What DIRECTORY/extra.properties says goes before the settings here;
# DIRECTORY/format.arguments is given along when the storage is made, for users who log in.
set -eu
here=$(dirname "$(readlink -f "$0")")
directory=$1
port=$2
controller=$3
settings=$directory/server.properties

mkdir -p "$directory"
cat > "$settings" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=PLAIN://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAIN://127.0.0.1:$port
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
log.dirs=$directory/data
log.retention.ms=-1
num.partitions=1
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
END
if [ -f "$directory/extra.properties" ]; then
    cat "$directory/extra.properties" >> "$settings"
fi

# A small heap, and a compiler that is soon ready rather than thorough: a test's server lives for minutes.
set -- -Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$here/libs/*" \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.log.kafka.server=info

if [ ! -f "$directory/data/meta.properties" ]; then
    arguments=
    if [ -f "$directory/format.arguments" ]; then
        arguments=$(cat "$directory/format.arguments")
    fi
    # shellcheck disable=SC2086 -- several arguments in one line
    java "$@" kafka.tools.StorageTool format --cluster-id cG9zdHJpZGVyLXRlc3RzLg --config "$settings" $arguments
fi
exec java "$@" kafka.Kafka "$settings"
