"""The settings Apache's broker and name server read, by name, from 4.0 to 5.x.

A file written for them works here as it is: what we have a setting for counts, what is listed here is
accepted and without effect, what is in neither is probably a typing error and is told of. Some settings
cannot be passed over, because who set them relies on them: those are refused.

Owns names only; which of them we have is the config structs' to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotfire.errors import ConfigError

_SERVER = """
    bindAddress channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway enableShutdownGracefully listenPort maxReconnectIntervalTimeSeconds
    scanAvailableNameSrv serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
    socksProxyConfig tls.client.authServer tls.client.certPath tls.client.keyPassword tls.client.keyPath
    tls.client.trustCertPath tls.config.file tls.enable tls.server.authClient tls.server.certPath
    tls.server.keyPassword tls.server.keyPath tls.server.mode tls.server.need.client.auth
    tls.server.trustCertPath tls.test.mode.enable useEpollNativeSelector useTLS writeBufferHighWaterMark
    writeBufferLowWaterMark
"""

BROKER = frozenset(
    f"""{_SERVER}
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
    accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet allowRecallWhenBrokerNotWriteable
    appendAckAsync appendCkAsync asyncLearner asyncSendEnable authConfigPath authenticationEnabled
    authenticationMetadataProvider authenticationProvider authenticationStrategy
    authenticationWhitelist authorizationEnabled authorizationMetadataProvider authorizationProvider
    authorizationStrategy authorizationWhitelist autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
    broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerClusterName brokerConfigPath
    brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerIP1 brokerIP2
    brokerId brokerName brokerNotActiveTimeoutMillis brokerPermission brokerRole brokerTopicEnable
    cgColdReadThreshold channelExpiredTimeout checkCRCOnRecover checkSyncStateSetPeriod
    cleanFileForciblyEnable cleanOfflineBrokerInterval cleanResourceInterval
    cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clusterName clusterTopicEnable
    coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType
    combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
    combineCQPreferCQType commercialBaseCount commercialBigCount commercialEnable
    commercialSizePerMsg commercialTimerCount commercialTransCount commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
    compactionMappedFileSize compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv
    compressedRegister configBlackList configManagerVersion configName consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
    correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers
    dLegerSelfId dataReadAheadEnable debugLockEnable defaultMessageRequestMode
    defaultPopShareQueueNum defaultQueryMaxNum defaultTopicQueueNums delayOffsetUpdateVersionStep
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
    destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly disappearTimeAfterStart
    diskFallRecorded diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio
    dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread duplicationEnable
    enableAcceleratedRecovery enableAsyncReput enableAutoInSyncReplicas enableBatchPush
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap
    enableCleanExpiredOffset enableCompaction enableConnectionMetrics enableConsumeQueueExt
    enableControllerMode enableCreateSysGroup enableDLegerCommitLog enableDetailStat
    enableFastChannelEventProcess enableLagAndDlqMetrics enableLmq enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType
    enableMultiDispatch enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
    enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog
    enablePopMessageThreshold enablePopMetrics enablePropertyFilter enableRegisterProducer
    enableRemoteEscape enableRemotingMetrics enableRequestMetrics enableRetryTopicV2
    enableRocksDBLog enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster enableSplitMetadata
    enableSplitRegistration enableStatsMetrics enableTransactionMetrics enabledAppendPropCRC
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup
    fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval
    fileReservedTime filterDataCleanTimeSpan filterServerNums filterSupportRetry
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType flushIntervalCommitLog
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
    forwardTimeout globalColdReadThreshold haFlowControlEnable haHousekeepingInterval haListenPort
    haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval
    haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer inSyncReplicas
    initAuthenticationUser initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials
    isolateLogEnable litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold longPollingEnable mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
    mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxDelayTime
    maxErrorRateOfBloomFilter maxFilterMessageSize maxHaTransferByteInSecond maxHashSlotNum
    maxIndexNum maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxOffsetMapSize
    maxPopPollingSize maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes
    maxTopicLength maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory memTableFlushIntervalMs
    messageDelayLevel messageIndexEnable messageIndexSafe messageStorePlugIn
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled minInSyncReplicas
    msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable offsetCheckInSlave
    osPageCacheBusyTimeOutMills popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
    popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
    popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
    popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead preferredLeaderId printChannelGroups printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums
    putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths readUnCommitted
    realTimeNotifyConsumerChange realTimePersistRocksDBConfig recallMessageEnable
    recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval
    regionId registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable
    rejectTransactionMessage replicasPerDiskPartition replyThreadPoolQueueCapacity
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum
    reviveScanTime rocketmqHome rocksdbCQDoubleWriteEnable rocksdbCompressionType
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendHeartbeatTimeoutMillis sendMessageThreadPoolNums
    sendThreadPoolQueueCapacity serverLoadBalancerEnable shortPollingTimeMills skipPreOnline
    skipWhenCKRePutReachMaxTimes slaveReadEnable slaveTimeout spinLockCollisionRetreatOptimalDegree
    splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp statRocksDBCQIntervalSec
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum storePathBrokerIdentity
    storePathCommitLog storePathDLedgerCommitLog storePathEpochFile storePathRootDir
    storeReplyMessageEnable storeType subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs timerCongestNumEachSlot
    timerEnableCheckMetrics timerEnableRetryUntilSuccess timerFlushIntervalMs
    timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
    timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
    timerSkipUnknownError timerStopEnqueue timerWheelEnable topicQueueLockNum totalReplicas traceOn
    traceTopicEnable transactionCheckInterval transactionCheckMax transactionMetricFlushInterval
    transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut transferMsgByHeap
    transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
    updateNameServerAddrPeriod useABSLock usePIDColdCtrStrategy useReentrantLockWhenPutMessage
    useServerSideResetOffset useStaticSubscription userCacheExpiredSecond userCacheMaxNum
    userCacheRefreshSecond validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue
    waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeWithoutMmap
    batchWriteKvCqSize enableTransparentRetry memTableFlushInterval serverLoadBalancerEnabled
    transferMetadataJsonToRocksdb transferOffsetJsonToRocksdb
    abortFile checkTransactionMessageEnable rmqAddressServerDomain rmqAddressServerSubGroup storeCheckpoint
    storePathConsumeQueue storePathIndex
    """.split()
)
"""The last six names are not read by Apache's broker either, but stand in many files."""

NAME_SERVER = frozenset(
    f"""{_SERVER}
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest configBlackList
    configStorePath controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId
    controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums
    controllerType defaultThreadPoolNums defaultThreadPoolQueueCapacity
    deleteTopicWithBrokerRegistration electMasterMaxRetryCount enableAllTopicList
    enableControllerInNamesrv enableElectUncleanMaster enableTopicList jRaftControllerRPCAddr
    jRaftElectionTimeoutMs jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId
    jRaftSnapshotIntervalSecs jraftConfig kvConfigPath mappedFileSize
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsPromExporterHost
    metricsPromExporterPort needWaitForService notifyBrokerRoleChanged notifyMinBrokerIdChanged
    orderMessageEnable processReadEvent productEnvName returnOrderTopicConfigToBroker rocketmqHome
    scanInactiveMasterInterval scanNotActiveBrokerInterval supportActingMaster
    unRegisterBrokerQueueCapacity waitSecondsForService
    """.split()
)

FILTER_SERVER = frozenset(
    f"""{_SERVER}
    clientUploadFilterClassEnable compressMsgBodyOverHowmuch connectWhichBroker filterClassRepertoryUrl
    filterServerIP fsServerAsyncSemaphoreValue fsServerCallbackExecutorThreads fsServerWorkerThreads
    namesrvAddr rocketmqHome zipCompressLevel
    """.split()
)

IMPORTANT = frozenset(
    """
    accessMessageInMemoryMaxRatio aclEnable allAckInSyncStateSet autoCreateSubscriptionGroup
    autoCreateTopicEnable brokerClusterName brokerIP1 brokerId brokerName brokerRole
    cleanFileForciblyEnable commitIntervalCommitLog deleteFileBatchMax deleteWhen
    disappearTimeAfterStart dispatchFromSenderThread enableAutoInSyncReplicas
    enableCleanExpiredOffset enableRunningFlagsInFlush fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fileReservedTime flushCommitLogTimed flushDiskType
    flushIntervalCommitLog haFlowControlEnable haMasterAddress inSyncReplicas listenPort
    maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory messageIndexEnable
    messageIndexSafe minInSyncReplicas msgTraceTopicName namesrvAddr recoverConcurrently
    rejectTransactionMessage storePathBrokerIdentity storePathCommitLog storePathDLedgerCommitLog
    storePathEpochFile storePathRootDir storeType totalReplicas traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionTimeOut transientStorePoolEnable
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage writeWithoutMmap
    """.split()  # noqa: SIM905  # one name per line would hide the next table
)
"""What Apache's broker shows of itself with `-m`."""

RELIED_UPON = {
    "aclEnable": "access control is not served, so everybody could do everything",
    "authenticationEnabled": "access control is not served, so everybody could do everything",
    "authorizationEnabled": "access control is not served, so everybody could do everything",
    "enableControllerMode": "there is no controller, so no other broker would take over",
    "enableControllerInNamesrv": "there is no controller, so no broker would take over from another",
    "duplicationEnable": "replication is not served, so there would be no copy",
}
"""Switches that must not be passed over silently, and what would be missing."""


def refuse_relied_upon(unknown: Mapping[str, str]) -> None:
    """Raise for a switch that is on and that we would not honour."""
    for key, missing in RELIED_UPON.items():
        if unknown.get(key, "").strip().lower() == "true":
            raise ConfigError(f"{key}=true: {missing}; set it to false to start without")
