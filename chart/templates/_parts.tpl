{{- /* What the pods of zkrq have in common. */ -}}
{{- define "zkrq.container" }}
          image: {{ printf "%s:%s" .Values.image.name .Values.image.tag | printf "%q" }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          envFrom: [{configMapRef: {name: {{ .Release.Name }}-settings}}]
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
{{- if .Values.secret }}
          volumeMounts: [{name: secrets, mountPath: /run/secrets/zkrq, readOnly: true}]
{{- end }}
{{- end -}}
{{- define "zkrq.pod" }}
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- if .Values.secret }}
      volumes: [{name: secrets, secret: {secretName: {{ .Values.secret }}, defaultMode: 288}}]
{{- end }}
{{- end -}}
